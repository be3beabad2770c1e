/* Keeps the first end of a connection in a program until its peer ends one, too.
 *
 * Programs disconnect as soon as they have what they wait for. rxe tells a program of a message before
 * it acknowledges it, and drops the acknowledgement if the queue pair has left RTS by then: the other
 * end, of any library, never sees its last send complete. Loaded before librdmacm in both ends, this
 * lets each of them see it first.
 *
 *   TOGETHER  a named pipe, and behind a colon what the end opens it for: r or w. Either open waits for
 *             the other one.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* As <rdma/rdma_cma.h> has it. */
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
	/* The end stays open until the program ends: a peer that comes later opens as well. */
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

/* libfabric's ends of connections, if nothing else waits for their end. */
void rdma_destroy_ep(struct rdma_cm_id *id)
{
	void (*next)(struct rdma_cm_id *) = dlsym(RTLD_NEXT, "rdma_destroy_ep");

	meet_once(id);
	next(id);
}
