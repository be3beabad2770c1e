/* Children that have not yet run the library's fork handler: inside a handler registered before the
 * first call of the library, and after _Fork(3). A thread of the parent holds the lock of a queue.
 * An alarm ends a child that waits for it. */
#include "test.h"

#include <pthread.h>
#include <semaphore.h>
#include <sys/wait.h>

static struct ibv_qp_ex *qp;
static struct ibv_cq *cq;
static sem_t has_begun, may_end;
static bool forks_early;

static void end_child(void)
{
	if (getenv("VERBS_TEST_CHECKED"))
		execl("/bin/true", "true", (char *)NULL);
	_exit(0);
}

static void start_send(void)
{
	ibv_wr_start(qp);
	qp->wr_id = 1;
	ibv_wr_send(qp);
}

static int complete_send(void)
{
	ibv_wr_set_sge(qp, 0, 0, 0);
	return ibv_wr_complete(qp);
}

static void is_refused(void)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
	struct ibv_wc wc;
	alarm(60);
	IS(ibv_post_send(&qp->qp_base, &wr, &bad), ENODEV);
	IS(ibv_poll_cq(cq, 1, &wc), 0);
	start_send();
	IS(complete_send(), ENODEV);
	ibv_wr_start(qp);
	ibv_wr_abort(qp);
}

static void in_handler(void)
{
	if (forks_early)
		is_refused();
}

static void wait_for(pid_t child)
{
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status));
	IS(WEXITSTATUS(status), 0);
}

static void *keep_lock(void *unused)
{
	start_send();
	sem_post(&has_begun);
	while (sem_wait(&may_end))
		;
	ibv_wr_abort(qp);
	return unused;
}

static void *refused_thread(void *unused)
{
	is_refused();
	return unused;
}

int main(void)
{
	/* The handler registered first runs first. */
	IS(pthread_atfork(NULL, NULL, in_handler), 0);
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(pd && cq);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp *made = ibv_create_qp_ex(context, &init);
	CHECK(made);
	qp = ibv_qp_to_qp_ex(made);

	pthread_t other;
	IS(sem_init(&has_begun, 0, 0), 0);
	IS(sem_init(&may_end, 0, 0), 0);
	IS(pthread_create(&other, NULL, keep_lock, NULL), 0);
	while (sem_wait(&has_begun))
		;
	for (int early = 0; early < 2; early++) {
		forks_early = early;
		pid_t child = fork();
		if (child == 0) {
			is_refused();
			end_child();
		}
		wait_for(child);
	}
	pid_t child = _Fork();
	if (child == 0) {
		is_refused();
		end_child();
	}
	wait_for(child);
	sem_post(&may_end);
	IS(pthread_join(other, NULL), 0);

	/* The thread that forks has the lock, and goes on in the child. Another thread of the child
	 * does not touch its batch. */
	forks_early = false;
	start_send();
	child = fork();
	if (child == 0) {
		alarm(60);
		IS(pthread_create(&other, NULL, refused_thread, NULL), 0);
		IS(pthread_join(other, NULL), 0);
		IS(complete_send(), ENODEV);
		end_child();
	}
	wait_for(child);
	ibv_wr_abort(qp);

	IS(ibv_destroy_qp(made), 0);
	IS(ibv_destroy_cq(cq), 0);
	IS(ibv_dealloc_pd(pd), 0);
	IS(ibv_close_device(context), 0);
	return 0;
}
