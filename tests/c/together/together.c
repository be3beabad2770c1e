/* Delays the first disconnection in a program until its peer disconnects, too.
 *
 * Many programs disconnect on their last completion. rxe completes a receive before it acknowledges
 * the message, and drops the acknowledgement if the queue pair has left RTS by then. The peer's last
 * send then never completes, with any library. Preloaded before librdmacm on both sides, this library
 * lets both sends complete first.
 *
 *   TOGETHER  a named pipe, a colon, and the mode in which this end opens it: r or w. Each open waits
 *             for the other one.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The beginning of the struct in <rdma/rdma_cma.h>. */
struct rdma_cm_id {
	void *verbs, *channel, *context, *qp;
};

static void meet(void)
{
	const char *value = getenv("TOGETHER");
	char *pipe = value ? strdup(value) : NULL;
	char *how = pipe ? strrchr(pipe, ':') : NULL;

	if (!how)
		abort();
	*how++ = 0;
	/* Stays open until the program ends, so that a later peer can open it, too. */
	while (open(pipe, (*how == 'w' ? O_WRONLY : O_RDONLY) | O_CLOEXEC) < 0)
		if (errno != EINTR)
			abort();
	free(pipe);
}

static void meet_once(const struct rdma_cm_id *id)
{
	static pthread_once_t met = PTHREAD_ONCE_INIT;

	if (id->qp)
		pthread_once(&met, meet);
}

int rdma_disconnect(struct rdma_cm_id *id)
{
	int (*next)(struct rdma_cm_id *) = dlsym(RTLD_NEXT, "rdma_disconnect");

	meet_once(id);
	return next(id);
}

/* Called by libfabric to end connections, unless something else waits for their end. */
void rdma_destroy_ep(struct rdma_cm_id *id)
{
	void (*next)(struct rdma_cm_id *) = dlsym(RTLD_NEXT, "rdma_destroy_ep");

	meet_once(id);
	next(id);
}
