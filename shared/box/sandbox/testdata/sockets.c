/* Tries to open sockets, by ways that only C has at hand. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
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

/* pairs tries to make of a pair a socket that leads to somebody else. */
static void pairs(const char *listener, const char *sequential) {
	int pair[2];
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	struct msghdr m = {.msg_name = &to, .msg_namelen = sizeof to};
	strncpy(to.sun_path, listener, sizeof to.sun_path - 1);
	say("pair", socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	say("connect the pair", connect(pair[0], (struct sockaddr *)&to, sizeof to));
	say("send on the pair", sendmsg(pair[0], &m, MSG_NOSIGNAL));
	say("listen on the pair", listen(pair[0], 1));
	close(pair[1]);
	shutdown(pair[0], SHUT_RDWR);
	say("and without its peer", connect(pair[0], (struct sockaddr *)&to, sizeof to));
	say("sequential pair", socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
	strncpy(to.sun_path, sequential, sizeof to.sun_path - 1);
	say("connect it", connect(pair[0], (struct sockaddr *)&to, sizeof to));
	say("datagram pair", socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
	say("raw pair", socketpair(AF_UNIX, SOCK_RAW, 0, pair));
	say("flags", syscall(SYS_socketpair, 0x100000000UL | AF_UNIX, 0x500000000UL | SOCK_DGRAM | SOCK_CLOEXEC, 0, pair));
}

int main(int argc, char **argv) {
	if (argc != 3)
		return 2;
	char params[256] = {0};
	say("tcp", socket(AF_INET, SOCK_STREAM, 0));
	say("udp", socket(AF_INET, SOCK_DGRAM, 0));
	say("raw", socket(AF_INET, SOCK_RAW, 1));
	say("tcp6", socket(AF_INET6, SOCK_STREAM, 0));
	say("packet", socket(AF_PACKET, SOCK_RAW, 0));
	say("netlink", socket(AF_NETLINK, SOCK_RAW, 0));
	say("high bits", syscall(SYS_socket, 0x100000000UL | AF_INET, SOCK_STREAM, 0));
	say("unix", socket(AF_UNIX, SOCK_STREAM, 0));
	pairs(argv[1], argv[2]);
	say("io_uring", syscall(SYS_io_uring_setup, 4, params));
	say("no call", syscall(-1));
#ifdef __x86_64__
	killed("compat", compat);
	killed("x32", x32);
#endif
	return 0;
}
