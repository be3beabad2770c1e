/* Forks of a process with connections: calls of the child fail, and destroy nothing in the
 * parent. */
#include "connections.h"

#include <sys/wait.h>

static pid_t parent;

/* Ends a child by executing a program without a leak checker: the checker would report memory
 * referenced only by the parent's other threads. Errors were printed before. */
static void end_child(void)
{
	if (getenv("VERBS_TEST_CHECKED"))
		execl("/bin/true", "true", (char *)NULL);
	_exit(0);
}

static void at_exit(void)
{
	if (getpid() != parent)
		end_child();
}

static void wait_for(pid_t child)
{
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status));
	IS(WEXITSTATUS(status), 0);
}

static pid_t forked(void)
{
	pid_t child = fork();
	CHECK(child >= 0);
	return child;
}

/* Ids of soft devices belong to the parent. No call of the child waits. */
static void calls_of_a_child_fail(struct connection *made)
{
	struct sockaddr_in own = own_address(0);
	pid_t child = forked();
	if (child == 0) {
		struct rdma_cm_event *event;
		struct rdma_cm_id *id;
		FAILS(rdma_get_cm_event(made->channels[0], &event), ENODEV);
		FAILS(rdma_disconnect(made->client), ENODEV);
		FAILS(rdma_listen(made->listener, 1), ENODEV);
		FAILS(rdma_create_id(made->channels[0], &id, NULL, RDMA_PS_TCP), ENODEV);
		FAILS(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), ENODEV);
		FAILS(rdma_bind_addr(made->listener, (struct sockaddr *)&own), ENODEV);
		end_child();
	}
	wait_for(child);
	send_message(made->client, made->server, "after a fork");
}

/* A child can destroy inherited objects or just exit: the peer notices neither. */
static void a_child_that_ends_disconnects_nothing(struct connection *made)
{
	for (int destroys = 0; destroys < 2; destroys++) {
		pid_t child = forked();
		if (child == 0) {
			if (destroys) {
				rdma_destroy_ep(made->client);
				rdma_destroy_ep(made->server);
				rdma_destroy_id(made->listener);
				rdma_destroy_event_channel(made->channels[0]);
				end_child();
			}
			exit(0);
		}
		wait_for(child);
		send_message(made->client, made->server, "still here");
		CHECK(!readable(made->channels[0]->fd, 0) && !readable(made->channels[1]->fd, 0));
	}
}

int main(int argc, char **argv)
{
	/* The handler registered first runs last. */
	parent = getpid();
	atexit(at_exit);
	IS(ibv_fork_init(), 0);
	for (int i = 0; i < rounds(argc, argv); i++) {
		struct connection made = connect_both();
		calls_of_a_child_fail(&made);
		a_child_that_ends_disconnects_nothing(&made);
		end_both(&made);
	}
	return 0;
}
