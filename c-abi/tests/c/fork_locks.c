/* Forks while threads of the parent make calls. Whatever locks they hold at that moment, the
 * child's calls end. Each child makes all calls once. There is no timer: a child that waits for a
 * lock of its parent keeps the program from ending. */
#include "connections.h"

#include <sys/mman.h>
#include <sys/wait.h>

/* Declared as in driver.h. */
int ibv_dontfork_range(void *base, size_t size);
int ibv_dofork_range(void *base, size_t size);

static struct ibv_context *context;
static struct ibv_pd *pd, *domain;
static struct ibv_srq *srq;
static enum ibv_fork_status protection;
static struct ibv_qp_ex *qp;
static struct ibv_cq_ex *cq;
static struct rdma_event_channel *channel, *of_shared;
static struct rdma_cm_id *shared;
static bool has_ids;
static int stop;

/* Ends a child: see connection_forks.c. */
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

static void list(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	CHECK(devices && devices[0]);
	ibv_free_device_list(devices);
}

static void open_and_close(void)
{
	struct ibv_context *own = open_device();
	CHECK(ibv_import_device(own->cmd_fd) == NULL && errno == EOPNOTSUPP);
	IS(ibv_close_device(own), 0);
}

/* Opens the devices shared by all ids. */
static void devices_of_ids(void)
{
	int count;
	struct ibv_context **contexts = rdma_get_devices(&count);
	CHECK(contexts && count > 0);
	rdma_free_devices(contexts);
}

static void channels(void)
{
	struct rdma_event_channel *own = rdma_create_event_channel();
	CHECK(own != NULL);
	rdma_destroy_event_channel(own);
}

static void registrations(void)
{
	static char memory[4096];
	struct ibv_pd *own = ibv_alloc_pd(context);
	struct ibv_mr *mr = own ? ibv_reg_mr(own, memory, sizeof memory, 0) : NULL;
	CHECK(mr != NULL);
	IS(ibv_dereg_mr(mr), 0);
	IS(ibv_dealloc_pd(own), 0);
}

/* Takes the lock of the pages excluded from forks. */
static void exclusions(void)
{
	static void *page;
	if (!page)
		page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED);
	IS(ibv_dontfork_range(page, 4096), 0);
	IS(ibv_dofork_range(page, 4096), 0);
}

static void batches(void)
{
	ibv_wr_start(qp);
	qp->wr_id = 1;
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, 0, 0, 0);
	ibv_wr_complete(qp);
	ibv_wr_start(qp);
	ibv_wr_abort(qp);
}

static void polls(void)
{
	struct ibv_wc wc;
	ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc);
	ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0);
}

static void receives(void)
{
	struct ibv_recv_wr wr = { .wr_id = 1 }, *bad;
	ibv_post_srq_recv(srq, &wr, &bad);
}

static void queries(void)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	ibv_query_qp(&qp->qp_base, &attr, IBV_QP_STATE, &init);
}

/* An id with a private channel. */
static void ids(void)
{
	struct rdma_event_channel *own = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct sockaddr_in address = own_address(0);
	IS(rdma_create_id(own, &id, NULL, RDMA_PS_TCP), 0);
	IS(rdma_bind_addr(id, (struct sockaddr *)&address), 0);
	IS(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(own);
}

/* An id on the shared channel, and its event. */
static void events(void)
{
	struct rdma_cm_event *event;
	struct sockaddr_in address = own_address(7);
	struct rdma_cm_id *id;
	IS(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	IS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, TIMEOUT_MS), 0);
	IS(rdma_get_cm_event(channel, &event), 0);
	IS(rdma_ack_cm_event(event), 0);
	IS(rdma_destroy_id(id), 0);
}

/* Calls on one id shared by all threads. */
static void options(void)
{
	uint8_t tos = 1;
	rdma_set_option(shared, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos);
	struct ibv_ece ece = { 0 };
	rdma_set_local_ece(shared, &ece);
	rdma_get_src_port(shared);
}

static void (*const calls[])(void) = { list, open_and_close, devices_of_ids, channels, registrations,
				       exclusions, batches, polls, queries, receives, ids, events, options };
enum { CALLS = sizeof calls / sizeof *calls, WITHOUT_IDS = 10 };

static void *calls_of_a_thread(void *call)
{
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
		(*(void (*const *)(void))call)();
	return NULL;
}

/* Calls of two threads of the child on one queue pair. */
static void *batches_of_a_child(void *unused)
{
	for (int i = 0; i < 20; i++)
		batches();
	return unused;
}

static void child(void)
{
	CHECK(ibv_is_fork_initialized() == protection);
	list();
	open_and_close();
	channels();
	struct ibv_pd *own = ibv_alloc_pd(context);
	if (own)
		ibv_dealloc_pd(own);
	pthread_t other;
	IS(pthread_create(&other, NULL, batches_of_a_child, NULL), 0);
	batches_of_a_child(NULL);
	IS(pthread_join(other, NULL), 0);
	polls();
	queries();
	if (!has_ids) {
		devices_of_ids();
		ids();
	} else {
		struct rdma_event_channel *new = rdma_create_event_channel();
		struct rdma_cm_event *event;
		struct rdma_cm_id *id;
		CHECK(new != NULL);
		FAILS(rdma_create_id(new, &id, NULL, RDMA_PS_TCP), ENODEV);
		FAILS(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), ENODEV);
		FAILS(rdma_get_cm_event(channel, &event), ENODEV);
		FAILS(rdma_listen(shared, 1), ENODEV);
		options();
		rdma_destroy_event_channel(new);
		IS(rdma_destroy_id(shared), 0);
		rdma_destroy_event_channel(channel);
	}
	IS(ibv_destroy_srq(srq), 0);
	IS(ibv_dealloc_pd(domain), 0);
	ibv_destroy_qp(&qp->qp_base);
	ibv_destroy_cq(ibv_cq_ex_to_cq(cq));
	end_child();
}

static void make_shared(void)
{
	context = open_device();
	pd = ibv_alloc_pd(context);
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS };
	cq = ibv_create_cq_ex(context, &cq_attr);
	CHECK(pd && cq);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = ibv_cq_ex_to_cq(cq),
		.recv_cq = ibv_cq_ex_to_cq(cq),
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_parent_domain_init_attr domain_attr = { .pd = pd };
	domain = ibv_alloc_parent_domain(context, &domain_attr);
	CHECK(domain);
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 16, .max_sge = 1 } };
	srq = ibv_create_srq(domain, &srq_attr);
	CHECK(srq);
	struct ibv_qp *made = ibv_create_qp_ex(context, &init);
	CHECK(made);
	qp = ibv_qp_to_qp_ex(made);
	if (has_ids) {
		struct sockaddr_in address = own_address(0);
		channel = rdma_create_event_channel();
		of_shared = rdma_create_event_channel();
		CHECK(channel && of_shared);
		IS(rdma_create_id(of_shared, &shared, NULL, RDMA_PS_TCP), 0);
		IS(rdma_bind_addr(shared, (struct sockaddr *)&address), 0);
	}
}

static void end_shared(void)
{
	IS(ibv_destroy_qp(&qp->qp_base), 0);
	IS(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	IS(ibv_destroy_srq(srq), 0);
	IS(ibv_dealloc_pd(domain), 0);
	IS(ibv_dealloc_pd(pd), 0);
	IS(ibv_close_device(context), 0);
}

static void fork_often(int count, int forks)
{
	pthread_t threads[CALLS];
	stop = 0;
	for (int i = 0; i < count; i++)
		IS(pthread_create(&threads[i], NULL, calls_of_a_thread, (void *)&calls[i]), 0);
	for (int i = 0; i < forks; i++) {
		int status;
		pid_t made = fork();
		CHECK(made >= 0);
		if (made == 0)
			child();
		CHECK(waitpid(made, &status, 0) == made);
		CHECK(WIFEXITED(status));
		IS(WEXITSTATUS(status), 0);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < count; i++)
		IS(pthread_join(threads[i], NULL), 0);
}

int main(int argc, char **argv)
{
	int forks = 5 * rounds(argc, argv);
	/* The handler registered first runs last. */
	parent = getpid();
	atexit(at_exit);
	IS(ibv_fork_init(), 0);
	protection = ibv_is_fork_initialized();
	own_address(0);
	make_shared();
	fork_often(WITHOUT_IDS, forks);
	end_shared();
	has_ids = true;
	make_shared();
	fork_often(CALLS, forks);
	IS(rdma_destroy_id(shared), 0);
	rdma_destroy_event_channel(of_shared);
	rdma_destroy_event_channel(channel);
	end_shared();
	return 0;
}
