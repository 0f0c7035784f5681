/* ledger.cpp: money is moved between two accounts of a ledger, which is one record: a transfer is all of it or nothing.
 *
 *   ledger LOCKS GUARD FROM TO CENTS        ledger file:/srv/locks dir:/srv/bank ana bob 250
 *   ledger LOCKS GUARD                      prints it */
#include <cstdlib>
#include <iostream>
#include <map>
#include <pawl.hpp>
#include <sstream>

static std::map<std::string, long> read(pawl::guard &bank) {
    std::map<std::string, long> accounts;
    std::string text, name;
    long cents;
    if (bank.get("ledger", text))
        for (std::istringstream in(text); in >> name >> cents;) accounts[name] = cents;
    return accounts;
}

static std::string text_of(const std::map<std::string, long> &accounts) {
    std::ostringstream out;
    for (const auto &account : accounts) out << account.first << ' ' << account.second << '\n';
    return out.str();
}

int main(int argc, char **argv) try {
    if (argc != 3 && argc != 6) {
        std::cerr << "usage: ledger LOCKS GUARD [FROM TO CENTS]\n";
        return 2;
    }
    pawl::guard bank(argv[2]);
    if (argc == 3) {
        std::cout << text_of(read(bank));
        return 0;
    }
    pawl::client client(argv[1]);
    pawl::lock lock(client, "ledger");
    bank.seal("ledger", lock); // before it is read: nothing of an earlier holder can come behind it
    auto accounts = read(bank);
    const long cents = std::atol(argv[5]);
    accounts[argv[3]] -= cents;
    accounts[argv[4]] += cents;
    bank.put("ledger", lock, text_of(accounts));
    return 0;
} catch (const pawl::error &error) {
    std::cerr << error.what() << '\n';
    return error.code == PAWL_GSTALE ? 121 : 1;
}
