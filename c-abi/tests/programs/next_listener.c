/* Delays each call of rdma_connect until the port has a listener that no earlier call has seen.
 *
 * perftest's server closes its listener after the exchange of parameters, and opens another one for
 * the test; its client reconnects at once. With rdma-core's library as well, either may come first.
 * Loaded before librdmacm, this library makes the order certain.
 *
 * LISTENER is the end of the listener's name in /proc/net/unix, such as /cm/2/106/7471/0.0.0.0. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The flag of a listening socket. */
#define ACCEPTS 0x10000u

struct rdma_cm_id;
struct rdma_conn_param;

/* Returns the inode of the listening socket, or 0. */
static unsigned long listener(const char *name)
{
	char line[512];
	unsigned long inode = 0, one;
	unsigned int flags;
	FILE *sockets = fopen("/proc/net/unix", "r");

	while (sockets && !inode && fgets(line, sizeof line, sockets))
		/* Number, references, protocol, flags, type, state, inode, path. */
		if (strstr(line, name) && sscanf(line, "%*s %*s %*s %x %*s %*s %lu", &flags, &one) == 2)
			inode = flags & ACCEPTS ? one : 0;
	if (sockets)
		fclose(sockets);
	return inode;
}

int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	static unsigned long seen;
	const struct timespec moment = { .tv_nsec = 200 * 1000 };
	const char *name = getenv("LISTENER");
	int (*next)(struct rdma_cm_id *, struct rdma_conn_param *) = dlsym(RTLD_NEXT, "rdma_connect");
	unsigned long now = listener(name);

	/* A server that has ended will not listen again; the test then ends its client after a
	 * while. */
	for (; !now || now == seen; now = listener(name))
		nanosleep(&moment, NULL);
	seen = now;
	return next(id, param);
}
