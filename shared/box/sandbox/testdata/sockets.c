/* Tries to open sockets, by ways that only C has at hand. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *name, long r) {
	printf("%s=%s\n", name, r >= 0 ? "ok" : strerrorname_np(errno));
	fflush(stdout);
	if (r > 2)
		close((int)r);
}

/* killed says which signal ended what f does in a child. */
static void killed(const char *name, void (*f)(void)) {
	int status = 0;
	pid_t child = fork();
	if (child == 0) {
		f();
		_exit(0);
	}
	waitpid(child, &status, 0);
	printf("%s=%s\n", name, WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS ? "SIGSYS" : "alive");
	fflush(stdout);
}

#ifdef __x86_64__
/* The socket call of 32-bit programs, which any 64-bit one can make. */
static void compat(void) {
	long r;
	__asm__ volatile("int $0x80" : "=a"(r) : "a"(359), "b"(AF_INET), "c"(SOCK_STREAM), "d"(0) : "memory");
}
static void x32(void) { syscall(0x40000000 | SYS_socket, AF_INET, SOCK_STREAM, 0); }
#endif

int main(void) {
	int pair[2];
	char params[256] = {0};
	say("tcp", socket(AF_INET, SOCK_STREAM, 0));
	say("udp", socket(AF_INET, SOCK_DGRAM, 0));
	say("raw", socket(AF_INET, SOCK_RAW, 1));
	say("tcp6", socket(AF_INET6, SOCK_STREAM, 0));
	say("packet", socket(AF_PACKET, SOCK_RAW, 0));
	say("netlink", socket(AF_NETLINK, SOCK_RAW, 0));
	say("high bits", syscall(SYS_socket, 0x100000000UL | AF_INET, SOCK_STREAM, 0));
	say("unix", socket(AF_UNIX, SOCK_STREAM, 0));
	say("pair", socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	say("io_uring", syscall(SYS_io_uring_setup, 4, params));
	say("no call", syscall(-1));
#ifdef __x86_64__
	killed("compat", compat);
	killed("x32", x32);
#endif
	return 0;
}
