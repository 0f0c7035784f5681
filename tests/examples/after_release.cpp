/* after_release.cpp: a pawl::lock that was given back, or moved from, is not held, and says so. */
#include <iostream>
#include <pawl.hpp>

static int faults = 0;

static void must(bool good, const char *what) {
    std::cout << (good ? "ok" : "not ok") << " - " << what << std::endl;
    faults += !good;
}

static void is_gone(pawl::lock &lock, const std::string &how) {
    int code = PAWL_OK;
    try {
        lock.check();
    } catch (const pawl::error &e) {
        code = e.code;
    }
    must(code == PAWL_ELOST, (how + ": check() throws PAWL_ELOST").c_str());
    must(!lock.held() && lock.token() == 0 && lock.name().empty(), (how + ": not held, no token, no name").c_str());
    lock.release(); /* once more is nothing */
}

int main() {
    pawl::client client("mem:after-release");
    pawl::lock first(client, "n");
    const int64_t token = first.token();
    pawl::lock second(std::move(first));
    must(second.held() && second.token() == token && second.name() == "n", "it is held by whom it was moved to");
    second.check();
    is_gone(first, "moved from");
    second.release();
    is_gone(second, "given back");
    pawl::lock third(client, "n", 0);
    must(third.held(), "it was free");
    return faults != 0;
}
