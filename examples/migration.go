// migration.go LOCKS GUARD FROM TO: each row is migrated once, by one of several workers, and a worker that comes later goes on
// where the last one stopped.
//
// The guard keeps how far it is, under rule seq: the same step is refused the second time, and so is every step of a worker that
// lost the lock.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

func pawl() string {
	if path := os.Getenv("PAWL"); path != "" {
		return path
	}
	return "pawl"
}

// hold runs pawl hold: one JSON line an event; the end of its stdin gives the lock back.
func hold(url, name string) (token string, release func() error, err error) {
	command := exec.Command(pawl(), "hold", "-u", url, name)
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err = command.Start(); err != nil {
		return "", nil, err
	}
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		var event struct{ Event, Token string }
		if json.Unmarshal(lines.Bytes(), &event) == nil && event.Event == "held" {
			return event.Token, func() error {
				stdin.Close()
				for lines.Scan() {
				}
				return command.Wait()
			}, nil
		}
	}
	return "", nil, fmt.Errorf("%s: not held: %v", name, command.Wait())
}

func guard(stdin string, words ...string) (string, error) {
	command := exec.Command(pawl(), append([]string{"guard"}, words...)...)
	command.Stdin = strings.NewReader(stdin)
	command.Stderr = os.Stderr
	out, err := command.Output()
	return strings.TrimSpace(string(out)), err
}

func run(locks, url string, from, to int) error {
	const name = "migration:accounts"
	token, release, err := hold(locks, name)
	if err != nil {
		return err
	}
	defer release()
	if _, err = guard("", "seal", url, name, "--lock", name, "--token", token, "--rule", "seq"); err != nil {
		return err
	}
	if text, err := guard("", "get", url, name); err == nil && text != "" {
		if last, err := strconv.Atoi(text); err == nil && last >= from {
			from = last + 1
		}
	}
	for row := from; row <= to; row++ {
		fmt.Println("row", row) // the work, which may be repeated for the one row that was under way when a worker died
		number := strconv.Itoa(row)
		if _, err = guard(number, "put", url, name, "--lock", name, "--token", token, "--seq", number); err != nil {
			return fmt.Errorf("row %d: the lock was lost, somebody else goes on: %w", row, err)
		}
	}
	return nil
}

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: migration LOCKS GUARD FROM TO")
		os.Exit(2)
	}
	from, _ := strconv.Atoi(os.Args[3])
	to, _ := strconv.Atoi(os.Args[4])
	if err := run(os.Args[1], os.Args[2], from, to); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
