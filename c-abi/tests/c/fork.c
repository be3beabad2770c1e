/* Forks: a child that exits at once, a child that opens the device itself, a child that does
 * nothing during the parent's traffic, and a child whose parent's threads hold locks. */
#include <sys/wait.h>

#include "test.h"

/* Ends a child by executing a program without a leak checker: the checker would report memory
 * referenced only by the parent's other threads. Errors were printed before. */
static void end_child(void)
{
	if (getenv("VERBS_TEST_CHECKED"))
		execl("/bin/true", "true", (char *)NULL);
	_exit(0);
}

static pid_t parent;

static void at_exit(void)
{
	if (getpid() != parent)
		end_child();
}

static void traffic(struct ibv_context *context)
{
	struct side one = make_side(context, IBV_QPT_RC, 4096), other = make_side(context, IBV_QPT_RC, 4096);
	connect_pair(one.qp, other.qp);
	for (int i = 0; i < 10; i++) {
		memset(one.memory, i + 1, 1000);
		post_recv(&other, 5, 0, 1000);
		struct ibv_sge sge = sge_of(&one, 0, 1000);
		struct ibv_send_wr wr = { .wr_id = 6, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED }, *bad;
		IS(ibv_post_send(one.qp, &wr, &bad), 0);
		success_of(one.cq);
		success_of(other.cq);
		CHECK(!memcmp(one.memory, other.memory, 1000));
	}
	destroy_side(&one);
	destroy_side(&other);
}

static void wait_for(pid_t child)
{
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status));
	IS(WEXITSTATUS(status), 0);
}

/* Exits with or without the library's destructors. */
static void a_child_that_exits_ends_nothing(struct ibv_context *context, struct side *side, bool runs_destructors)
{
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		if (runs_destructors)
			exit(0);
		end_child();
	}
	wait_for(child);
	struct ibv_device_attr attr;
	IS(ibv_query_device(context, &attr), 0);
	struct ibv_sge sge = sge_of(side, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)side->memory + 64;
	wr.wr.rdma.rkey = side->mr->rkey;
	IS(ibv_post_send(side->qp, &wr, &bad), 0);
	success_of(side->cq);
}

static void a_child_has_a_device_of_its_own(void)
{
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		struct ibv_context *own = open_device();
		traffic(own);
		IS(ibv_close_device(own), 0);
		end_child();
	}
	wait_for(child);
}

/* A child can destroy inherited objects: its calls destroy nothing in the parent. */
static void a_child_destroys_what_it_inherited(struct ibv_context *context)
{
	struct side side = make_side(context, IBV_QPT_RC, 4096);
	to_init(side.qp);
	connect_qp(side.qp, side.qp->qp_num);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		ibv_destroy_qp(side.qp);
		ibv_destroy_cq(side.cq);
		ibv_dereg_mr(side.mr);
		ibv_dealloc_pd(side.pd);
		end_child();
	}
	wait_for(child);
	a_child_that_exits_ends_nothing(context, &side, false);
	destroy_side(&side);
}

struct holder {
	struct ibv_cq_ex *cq;
	struct ibv_qp_ex *qp;
	pthread_barrier_t has_locks, may_return;
};

/* Holds the locks of a completion queue and of a send queue across calls. */
static void *hold_locks(void *argument)
{
	struct holder *holder = argument;
	struct ibv_poll_cq_attr attr = { 0 };
	double deadline = seconds() + DEADLINE_SECONDS;
	while (ibv_start_poll(holder->cq, &attr))
		CHECK(seconds() < deadline);
	ibv_wr_start(holder->qp);
	pthread_barrier_wait(&holder->has_locks);
	pthread_barrier_wait(&holder->may_return);
	ibv_wr_abort(holder->qp);
	ibv_end_poll(holder->cq);
	return NULL;
}

/* No thread in a child can release the locks held by its parent's threads. */
static void a_child_waits_for_no_thread_of_its_parent(struct ibv_context *context)
{
	struct side side = make_side(context, 0, 4096);
	struct ibv_cq_init_attr_ex attr = { .cqe = 8, };
	struct holder holder = { .cq = ibv_create_cq_ex(context, &attr) };
	CHECK(holder.cq != NULL);
	struct ibv_cq *unused = side.cq;
	side.cq = ibv_cq_ex_to_cq(holder.cq);
	side.qp = create_qp_ex(side.pd, side.cq, IBV_QPT_RC, WR_OPS);
	CHECK(side.qp != NULL);
	holder.qp = ibv_qp_to_qp_ex(side.qp);
	to_init(side.qp);
	connect_qp(side.qp, side.qp->qp_num);
	loop_message(&side);
	pthread_t thread;
	IS(pthread_barrier_init(&holder.has_locks, NULL, 2), 0);
	IS(pthread_barrier_init(&holder.may_return, NULL, 2), 0);
	IS(pthread_create(&thread, NULL, hold_locks, &holder), 0);
	pthread_barrier_wait(&holder.has_locks);

	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		alarm(DEADLINE_SECONDS);
		struct ibv_wc wc;
		struct ibv_poll_cq_attr poll = { 0 };
		struct ibv_sge sge = sge_of(&side, 0, 8);
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad = NULL;
		struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad_receive = NULL;
		struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
		for (int i = 0; i < 2; i++) {
			IS(ibv_poll_cq(side.cq, 1, &wc), 0);
			IS(ibv_start_poll(holder.cq, &poll), ENOENT);
			IS(ibv_post_send(side.qp, &wr, &bad), ENODEV);
			CHECK(bad == &wr);
			IS(ibv_post_recv(side.qp, &receive, &bad_receive), ENODEV);
			ibv_wr_start(holder.qp);
			ibv_wr_send(holder.qp);
			ibv_wr_set_sge(holder.qp, side.mr->lkey, sge.addr, 8);
			IS(ibv_wr_complete(holder.qp), ENODEV);
			ibv_wr_start(holder.qp);
			ibv_wr_abort(holder.qp);
			IS(ibv_req_notify_cq(side.cq, 0), ENODEV);
			IS(ibv_resize_cq(side.cq, 16), ENODEV);
			IS(ibv_modify_qp(side.qp, &error, IBV_QP_STATE), ENODEV);
		}
		/* Objects without locks are destroyed, without effect on the parent. */
		IS(ibv_destroy_qp(side.qp), 0);
		IS(ibv_destroy_cq(side.cq), ENODEV);
		end_child();
	}
	wait_for(child);
	pthread_barrier_wait(&holder.may_return);
	IS(pthread_join(thread, NULL), 0);
	/* The other completion. */
	success_of(side.cq);
	loop_message(&side);
	success_of(side.cq);
	success_of(side.cq);
	destroy_side(&side);
	IS(ibv_destroy_cq(unused), 0);
}

int main(int argc, char **argv)
{
	/* The handler registered first runs last. */
	parent = getpid();
	atexit(at_exit);
	IS(ibv_fork_init(), 0);
	CHECK(ibv_is_fork_initialized() != IBV_FORK_DISABLED);
	struct ibv_context *context = open_device();
	struct side side = make_side(context, IBV_QPT_RC, 4096);
	to_init(side.qp);
	connect_qp(side.qp, side.qp->qp_num);
	for (int i = 0; i < rounds(argc, argv); i++) {
		a_child_that_exits_ends_nothing(context, &side, false);
		a_child_that_exits_ends_nothing(context, &side, true);
		a_child_has_a_device_of_its_own();
		a_child_destroys_what_it_inherited(context);
		a_child_waits_for_no_thread_of_its_parent(context);
		traffic(context);
	}
	destroy_side(&side);
	IS(ibv_close_device(context), 0);
	a_child_has_a_device_of_its_own();
	return 0;
}
