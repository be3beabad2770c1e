/* Calls of a process without free memory: each one works or fails with ENOMEM. The process
 * survives, the data path and destruction keep working, and all calls work again once there is
 * memory. */
#include "connections.h"

#include <sys/resource.h>

enum { KINDS = 16, ROUNDS = 100 };

static struct ibv_context *context;
static struct side side;
static struct ibv_ah_attr path;
/* The objects, by kind. */
static void *made[KINDS][ROUNDS];

/* Opens the device once more. */
static struct ibv_context *open_again(void)
{
	return ibv_open_device(context->device);
}

/* Creates an object of a kind; returns null with errno. */
static void *make(int kind, int round)
{
	/* Sizes of a few pages and of megabytes. */
	uint32_t depth = round % 3 ? 4000 : 16;
	struct ibv_qp_init_attr qp = qp_attr(side.cq, IBV_QPT_RC);
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = depth, .max_sge = 4 } };
	struct ibv_cq_init_attr_ex cq = { .cqe = depth, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN };
	struct ibv_xrcd_init_attr xrcd = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
					   .fd = -1, .oflags = O_CREAT };
	struct ibv_alloc_dm_attr dm = { .length = 64 };
	struct ibv_td_init_attr td = { 0 };
	struct rdma_cm_id *id = NULL;
	qp.cap.max_send_wr = depth;
	qp.cap.max_recv_wr = depth;
	switch (kind) {
	case 0: return ibv_alloc_pd(context);
	case 1: return ibv_create_cq(context, (int)depth, NULL, NULL, 0);
	case 2: return ibv_create_qp(side.pd, &qp);
	case 3: return ibv_create_srq(side.pd, &srq);
	case 4: return ibv_reg_mr(side.pd, side.memory, side.size, ALL_ACCESS);
	case 5: return ibv_create_ah(side.pd, &path);
	case 6: return ibv_create_comp_channel(context);
	case 7: return ibv_alloc_mw(side.pd, IBV_MW_TYPE_2);
	case 8: return ibv_create_cq_ex(context, &cq);
	case 9: return ibv_open_xrcd(context, &xrcd);
	case 10: return ibv_alloc_dm(context, &dm);
	case 11: return ibv_alloc_td(context, &td);
	case 12: return ibv_get_device_list(NULL);
	case 13: return open_again();
	case 14: return rdma_create_event_channel();
	default: return rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) ? NULL : id;
	}
}

static void destroy(int kind, void *object)
{
	switch (kind) {
	case 0: IS(ibv_dealloc_pd(object), 0); break;
	case 1: IS(ibv_destroy_cq(object), 0); break;
	case 2: IS(ibv_destroy_qp(object), 0); break;
	case 3: IS(ibv_destroy_srq(object), 0); break;
	case 4: IS(ibv_dereg_mr(object), 0); break;
	case 5: IS(ibv_destroy_ah(object), 0); break;
	case 6: IS(ibv_destroy_comp_channel(object), 0); break;
	case 7: IS(ibv_dealloc_mw(object), 0); break;
	case 8: IS(ibv_destroy_cq(ibv_cq_ex_to_cq(object)), 0); break;
	case 9: IS(ibv_close_xrcd(object), 0); break;
	case 10: IS(ibv_free_dm(object), 0); break;
	case 11: IS(ibv_dealloc_td(object), 0); break;
	case 12: ibv_free_device_list(object); break;
	case 13: IS(ibv_close_device(object), 0); break;
	case 14: rdma_destroy_event_channel(object); break;
	default: IS(rdma_destroy_id(object), 0); break;
	}
}

/* Creates objects of all kinds; each call that fails sets ENOMEM. Returns the number of rejected
 * calls in the last round. */
static int make_all(int rounds)
{
	int refused = 0;
	for (int round = 0; round < rounds; round++) {
		refused = 0;
		for (int kind = 0; kind < KINDS; kind++) {
			errno = 0;
			made[kind][round] = make(kind, round);
			if (made[kind][round])
				continue;
			/* A device may lack a kind. */
			if (errno == EOPNOTSUPP)
				continue;
			if (errno != ENOMEM)
				fprintf(stderr, "kind %d, round %d: %s\n", kind, round, strerror(errno));
			IS(errno, ENOMEM);
			refused++;
		}
	}
	return refused;
}

static void destroy_all(void)
{
	for (int kind = 0; kind < KINDS; kind++)
		for (int round = 0; round < ROUNDS; round++) {
			if (made[kind][round])
				destroy(kind, made[kind][round]);
			made[kind][round] = NULL;
		}
}

/* Returns a queue pair whose batches have not yet kept any data. */
static struct ibv_qp_ex *new_batches(void)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = side.cq,
		.recv_cq = side.cq,
		.cap = { .max_send_wr = 1, .max_send_sge = 1 },
		.qp_type = IBV_QPT_UD,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = side.pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
	CHECK(qp != NULL);
	return ibv_qp_to_qp_ex(qp);
}

/* Sets a list that the batch keeps, because the request has no address yet. It is longer than the
 * pieces in the library's reserve, and than the queue allows. */
static int send_many_pieces(struct ibv_qp_ex *qp)
{
	static struct ibv_sge list[4000];
	ibv_wr_start(qp);
	qp->wr_flags = 0;
	ibv_wr_send(qp);
	ibv_wr_set_sge_list(qp, 4000, list);
	return ibv_wr_complete(qp);
}

/* Messages, queries (which may allocate), and rejected calls that report a cause. */
static void use(void)
{
	struct ibv_device_attr device;
	struct ibv_port_attr port;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	uint8_t mac[6];
	uint16_t vlan;
	/* Queries the kernel, whose replies need a buffer larger than the reserve's pieces. */
	IS_ONE_OF(ibv_resolve_eth_l2_from_gid(context, &path, mac, &vlan), 0, -EHOSTUNREACH);
	for (int i = 0; i < 20; i++) {
		IS_ONE_OF(ibv_query_device(context, &device), 0, ENOMEM);
		IS_ONE_OF(ibv_query_port(context, PORT, &port), 0, ENOMEM);
		IS_ONE_OF(ibv_query_qp(side.qp, &attr, IBV_QP_STATE, &init), 0, ENOMEM);
		CHECK(ibv_query_port(context, 77, &port) != 0);
		CHECK(ibv_modify_qp(side.qp, &attr, IBV_QP_PATH_MTU) != 0);
		loop_message(&side);
		success_of(side.cq);
		success_of(side.cq);
	}
}

static rlim_t address_space(void)
{
	unsigned long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	CHECK(file != NULL && fscanf(file, "%lu", &pages) == 1);
	fclose(file);
	return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

static void limit(rlim_t bytes)
{
	struct rlimit both;
	IS(getrlimit(RLIMIT_AS, &both), 0);
	both.rlim_cur = bytes;
	IS(setrlimit(RLIMIT_AS, &both), 0);
}

/* Takes all memory available from `malloc`, as a list. */
static void *take_all(void)
{
	void *list = NULL, **piece;
	for (size_t size = 1 << 20; size >= 16; size /= 2)
		while ((piece = malloc(size))) {
			*piece = list;
			list = piece;
		}
	return list;
}

static void give_back(void *list)
{
	while (list) {
		void *next = *(void **)list;
		free(list);
		list = next;
	}
}

int main(void)
{
	/* The checkers map terabytes, or their allocator ends the process. */
	if (getenv("VERBS_TEST_CHECKED"))
		return 0;
	context = open_device();
	path = own_path(context);
	side = make_side(context, IBV_QPT_RC, 1 << 16);
	to_init(side.qp);
	connect_qp(side.qp, side.qp->qp_num);
	/* Threads start while there is memory. */
	IS(make_all(1), 0);
	destroy_all();

	/* Some memory, most of it for queues. */
	for (rlim_t spare = 0; spare <= 16 << 20; spare = spare ? 4 * spare : 1 << 14) {
		limit(address_space() + spare);
		CHECK(make_all(ROUNDS) > 0);
		use();
		destroy_all();
		use();
		limit(RLIM_INFINITY);
		IS(make_all(3), 0);
		destroy_all();
		use();
	}

	/* No memory. */
	struct ibv_qp_ex *batches = new_batches();
	limit(address_space());
	void *list = take_all();
	IS(send_many_pieces(batches), ENOMEM);
	IS(make_all(ROUNDS), KINDS);
	use();
	destroy_all();
	use();
	limit(RLIM_INFINITY);
	give_back(list);
	IS(make_all(3), 0);
	destroy_all();
	use();
	IS(send_many_pieces(batches), EINVAL);
	IS(ibv_destroy_qp(&batches->qp_base), 0);

	destroy_side(&side);
	IS(ibv_close_device(context), 0);
	return 0;
}
