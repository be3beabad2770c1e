/* Common parts of the C programs: checks that print the failed line, and connected queue pairs of
 * one device. The device is VERBS_TEST_DEVICE, or soft0; the GID has index VERBS_TEST_GID, or 0. */
#ifndef TEST_H
#define TEST_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Ends the program with the line unless the condition holds. */
#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			int error_ = errno;                                                        \
			fprintf(stderr, "%s:%d: not true: %s (errno %d, %s)\n", __FILE__,          \
				__LINE__, #condition, error_, strerror(error_));                   \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

/* Ends the program unless the expression has the value. */
#define IS(expression, expected)                                                                   \
	do {                                                                                       \
		long long value_ = (long long)(expression);                                        \
		long long wanted_ = (long long)(expected);                                         \
		if (value_ != wanted_) {                                                           \
			fprintf(stderr, "%s:%d: %s is %lld (%s) rather than %lld (%s)\n",          \
				__FILE__, __LINE__, #expression, value_, strerror((int)value_),    \
				wanted_, #expected);                                               \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

/* Ends the program unless a constructor returns null and sets errno. */
#define REFUSED(expression, expected)                                                              \
	do {                                                                                       \
		errno = 0;                                                                         \
		CHECK((expression) == NULL);                                                       \
		int set_ = errno;                                                                  \
		if (set_ != (expected)) {                                                          \
			fprintf(stderr, "%s:%d: %s sets errno %d (%s) rather than %s\n", __FILE__, \
				__LINE__, #expression, set_, strerror(set_), #expected);           \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

/* Ends the program unless a call that returns an errno returns one of two. */
#define IS_ONE_OF(expression, one, other)                                                          \
	do {                                                                                       \
		int value_ = (expression);                                                         \
		if (value_ != (one) && value_ != (other)) {                                        \
			fprintf(stderr, "%s:%d: %s is %d (%s) rather than %s or %s\n", __FILE__,   \
				__LINE__, #expression, value_, strerror(value_), #one, #other);    \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

enum { PORT = 1, DEADLINE_SECONDS = 90, ALL_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
						     IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

static inline int gid_index(void)
{
	const char *text = getenv("VERBS_TEST_GID");
	return text ? atoi(text) : 0;
}

/* The number of times a program repeats its work: its first argument. */
static inline int rounds(int argc, char **argv)
{
	return argc > 1 ? atoi(argv[1]) : 1;
}

static inline double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline struct ibv_context *open_device(void)
{
	const char *wanted = getenv("VERBS_TEST_DEVICE");
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;
	CHECK(list != NULL);
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), wanted ? wanted : "soft0"))
			context = ibv_open_device(list[i]);
	CHECK(context != NULL);
	ibv_free_device_list(list);
	return context;
}

/* A queue pair and everything it needs. */
struct side {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *memory;
	size_t size;
};

static inline struct ibv_qp_init_attr qp_attr(struct ibv_cq *cq, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 2, .max_recv_sge = 2,
			 .max_inline_data = 64 },
		.qp_type = type,
	};
	return attr;
}

/* The extended functions that these programs may use through `ibv_wr_...`. */
enum { WR_OPS = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
		IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
		IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD };

static inline struct ibv_qp *create_qp_ex(struct ibv_pd *pd, struct ibv_cq *cq, enum ibv_qp_type type,
					  uint64_t ops)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 2, .max_recv_sge = 2,
			 .max_inline_data = 64 },
		.qp_type = type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = ops,
	};
	return ibv_create_qp_ex(pd->context, &attr);
}

static inline void to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = PORT,
		.qp_access_flags = ALL_ACCESS,
		.qkey = 0x11111111,
	};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	mask |= qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	IS(ibv_modify_qp(qp, &attr, mask), 0);
}

static inline struct ibv_ah_attr own_path(struct ibv_context *context)
{
	struct ibv_ah_attr path = {
		.is_global = 1,
		.port_num = PORT,
		.grh = { .sgid_index = (uint8_t)gid_index(), .hop_limit = 64 },
	};
	IS(ibv_query_gid(context, PORT, gid_index(), &path.grh.dgid), 0);
	return path;
}

static inline void connect_qp(struct ibv_qp *qp, uint32_t dest_qp_num)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = dest_qp_num,
		.rq_psn = 100,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 1,
		.ah_attr = own_path(qp->context),
	};
	bool is_ud = qp->qp_type == IBV_QPT_UD, is_uc = qp->qp_type == IBV_QPT_UC;
	int mask = IBV_QP_STATE;
	if (!is_ud)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (!is_ud && !is_uc)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	IS(ibv_modify_qp(qp, &attr, mask), 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 100;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 4;
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (!is_ud && !is_uc)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	IS(ibv_modify_qp(qp, &attr, mask), 0);
}

static inline void connect_pair(struct ibv_qp *one, struct ibv_qp *other)
{
	to_init(one);
	to_init(other);
	connect_qp(one, other->qp_num);
	connect_qp(other, one->qp_num);
}

/* Creates the objects that a queue pair needs, and the queue pair unless its type is 0. */
static inline struct side make_side(struct ibv_context *context, enum ibv_qp_type type, size_t size)
{
	struct side side = { .size = size };
	side.pd = ibv_alloc_pd(context);
	CHECK(side.pd != NULL);
	side.cq = ibv_create_cq(context, 128, NULL, NULL, 0);
	CHECK(side.cq != NULL);
	side.memory = calloc(1, size);
	side.mr = ibv_reg_mr(side.pd, side.memory, size, ALL_ACCESS);
	CHECK(side.mr != NULL);
	if (type) {
		struct ibv_qp_init_attr attr = qp_attr(side.cq, type);
		side.qp = ibv_create_qp(side.pd, &attr);
		CHECK(side.qp != NULL);
	}
	return side;
}

static inline void destroy_side(struct side *side)
{
	if (side->qp)
		IS(ibv_destroy_qp(side->qp), 0);
	IS(ibv_destroy_cq(side->cq), 0);
	IS(ibv_dereg_mr(side->mr), 0);
	IS(ibv_dealloc_pd(side->pd), 0);
	free(side->memory);
}

static inline struct ibv_sge sge_of(const struct side *side, size_t offset, size_t length)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)side->memory + offset,
		.length = (uint32_t)length,
		.lkey = side->mr->lkey,
	};
	return sge;
}

static inline void post_recv(const struct side *side, uint64_t wr_id, size_t offset, size_t length)
{
	struct ibv_sge sge = sge_of(side, offset, length);
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	IS(ibv_post_recv(side->qp, &wr, &bad), 0);
}

/* Waits for one completion of any status. */
static inline struct ibv_wc completion_of(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	double deadline = seconds() + DEADLINE_SECONDS;
	int count;
	while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
		CHECK(seconds() < deadline);
	IS(count, 1);
	return wc;
}

/* Waits for a successful completion. */
static inline struct ibv_wc success_of(struct ibv_cq *cq)
{
	struct ibv_wc wc = completion_of(cq);
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "test.h: wr_id %llu: %s (vendor %#x)\n", (unsigned long long)wc.wr_id,
			ibv_wc_status_str(wc.status), wc.vendor_err);
		exit(1);
	}
	return wc;
}

/* Sends a message on a queue pair connected to itself: two completions. */
static inline void loop_message(struct side *side)
{
	post_recv(side, 1, 0, 64);
	struct ibv_sge sge = sge_of(side, 128, 64);
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	IS(ibv_post_send(side->qp, &wr, &bad), 0);
}

static inline bool readable(int fd, int milliseconds)
{
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };
	int count = poll(&poll_fd, 1, milliseconds);
	CHECK(count >= 0);
	return count == 1;
}

#endif
