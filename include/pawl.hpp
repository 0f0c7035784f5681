/* pawl.hpp: pawl.h and pawl_guard.h for C++11: what must be given back is given back when it goes out of scope, and what goes
 * wrong is thrown. Header only; link with -lpawl. A lock must not outlive its client.
 *
 *     pawl::client client("file:/srv/locks");
 *     pawl::lock lock(client, "acct");                       // waits; throws pawl::error
 *     pawl::guard("dir:/srv/data").put("balance", lock, "2500");
 *     lock.check();                                          // throws if it was lost meanwhile */
#ifndef PAWL_HPP
#define PAWL_HPP
#include "pawl_guard.h"
#include <stdexcept>
#include <string>
#include <utility>

namespace pawl {

/* code: PAWL_E... of pawl.h, or PAWL_G... of pawl_guard.h. */
class error : public std::runtime_error {
  public:
    error(int code_, const char *text) : std::runtime_error(text), code(code_) {}
    const int code;
};

namespace detail {
struct said : pawl_error {
    said() : pawl_error(PAWL_ERROR_INIT) {}
    void must(int result) const {
        if (result != PAWL_OK) throw error(result, text);
    }
};
} // namespace detail

class client {
  public:
    explicit client(const std::string &url, const pawl_options *options = nullptr) {
        detail::said said;
        said.must(pawl_open(url.c_str(), options, &handle, &said));
    }
    ~client() { pawl_close(handle); }
    client(const client &) = delete;
    client &operator=(const client &) = delete;
    pawl_client *get() const { return handle; }

  private:
    pawl_client *handle = nullptr;
};

/* Held from its construction to its end, or its release(). One that was given back, or moved from, is not held: token 0, name
 * "". */
class lock {
  public:
    lock(const client &client, const std::string &name, int64_t wait_ms = PAWL_FOREVER) {
        detail::said said;
        pawl_acquire_options options = PAWL_ACQUIRE_INIT;
        options.wait_ms = wait_ms;
        said.must(pawl_acquire(client.get(), name.c_str(), &options, &handle, &said));
    }
    lock(lock &&other) noexcept : handle(other.handle) { other.handle = nullptr; }
    lock(const lock &) = delete;
    lock &operator=(const lock &) = delete;
    ~lock() {
        if (handle) pawl_release(handle, 2000, nullptr); /* what did not answer ends with its time to live */
    }
    int64_t token() const { return handle ? pawl_token(handle) : 0; }
    std::string name() const { return handle ? pawl_name(handle) : ""; }
    bool held() const { return handle && pawl_check(handle) == PAWL_OK; }
    void check() const {
        if (!held()) throw error(PAWL_ELOST, handle ? "the lock was lost" : "the lock was given back");
    }
    /* Gives it back now, and tells what came of it. */
    void release(int64_t wait_ms = 2000) {
        detail::said said;
        pawl_lock *gone = handle;
        handle = nullptr;
        if (gone) said.must(pawl_release(gone, wait_ms, &said));
    }

  private:
    pawl_lock *handle = nullptr;
};

/* The resource's side. One thread at a time. */
class guard {
  public:
    explicit guard(const std::string &url) {
        detail::said said;
        said.must(pawl_guard_open(url.c_str(), nullptr, &handle, &said));
    }
    ~guard() { pawl_guard_close(handle); }
    guard(const guard &) = delete;
    guard &operator=(const guard &) = delete;

    void put(const std::string &resource, const lock &lock, const std::string &data) {
        put(resource, lock.name(), lock.token(), data);
    }
    void put(const std::string &resource, const std::string &lock, int64_t token, const std::string &data) {
        detail::said said;
        pawl_guard_write write = of(resource, lock, token);
        said.must(pawl_guard_put(handle, &write, data.data(), data.size(), &said));
    }
    void seal(const std::string &resource, const lock &lock) {
        detail::said said;
        const std::string name = lock.name();
        pawl_guard_write write = of(resource, name, lock.token());
        said.must(pawl_guard_seal(handle, &write, &said));
    }
    /* The data; false: nothing was written under that name yet. */
    bool get(const std::string &resource, std::string &ret) {
        detail::said said;
        pawl_guard_record *record = nullptr;
        const int code = pawl_guard_get(handle, resource.c_str(), &record, &said);
        if (code == PAWL_GNORECORD) return false;
        said.must(code);
        const bool written = record->written != 0;
        if (written) ret.assign(static_cast<const char *>(record->data), record->length);
        pawl_guard_free(record);
        return written;
    }

  private:
    static pawl_guard_write of(const std::string &resource, const std::string &lock, int64_t token) {
        pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
        write.resource = resource.c_str();
        write.lock = lock.c_str();
        write.token = token;
        return write;
    }
    pawl_guard *handle = nullptr;
};

} // namespace pawl
#endif
