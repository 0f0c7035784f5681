/* run_editor: as much of a full-screen editor as matters to a wrapper: raw mode, the alternate screen, its own way of
 * stopping (modes restored, then kill(0, SIGTSTP)), and the size of the window. Keys: ^Z stops, q ends, others are
 * shown. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

static struct termios before;
static volatile sig_atomic_t resized;

static void on_resize(int sig) {
    (void)sig;
    resized++;
}

static void enter(void) {
    struct termios raw = before;
    cfmakeraw(&raw);
    tcsetattr(0, TCSANOW, &raw);
    dprintf(1, "\033[?1049hEDITOR\r\n");
}

static void leave(void) {
    dprintf(1, "\033[?1049l");
    tcsetattr(0, TCSANOW, &before);
}

static void show_size(void) {
    struct winsize size = {0};
    ioctl(0, TIOCGWINSZ, &size);
    dprintf(1, "SIZE %dx%d after %d\r\n", size.ws_col, size.ws_row, (int)resized);
}

static volatile sig_atomic_t signals;

static void on_signal(int sig) {
    (void)sig;
    signals++;
}

static int count(void) {
    const int sigs[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    char line[64];
    for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++) sigaction(sigs[i], &action, NULL);
    dprintf(1, "READY\n");
    while (fgets(line, sizeof line, stdin) && strcmp(line, "end\n") != 0) dprintf(1, "COUNT %d\n", (int)signals);
    return 5;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "count") == 0) return count();
    struct sigaction resize = {.sa_handler = on_resize};
    if (tcgetattr(0, &before)) return 3;
    sigset_t winch, none;
    sigemptyset(&none);
    sigemptyset(&winch);
    sigaddset(&winch, SIGWINCH);
    sigprocmask(SIG_BLOCK, &winch, NULL); /* it comes in ppoll only, or not at all before the next key */
    sigaction(SIGWINCH, &resize, NULL);
    enter();
    for (;;) {
        char key;
        struct pollfd input = {.fd = 0, .events = POLLIN};
        if (ppoll(&input, 1, NULL, &none) < 0) {
            if (resized) show_size();
            continue;
        }
        ssize_t n = read(0, &key, 1);
        if (n <= 0 || key == 'q') break;
        if (key == 26) {
            leave();
            kill(0, SIGTSTP);
            enter();
        } else {
            dprintf(1, "KEY %d\r\n", key);
        }
    }
    leave();
    return 0;
}
