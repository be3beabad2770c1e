/* C's functions on rdma-core's libmlx5, called by a C program. The functions of cost.rs with the
 * same names do the same on our library. `cost FUNCTION` calls one of them CALLS times for
 * callgrind, which counts the instructions inside it; `cost` without an argument prints the file of
 * the library. */

#include "kernel.h"

#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 256, BATCH = 16, SLOTS = 4096, LEN = 8, KEY = 7, REMOTE = 0x2000 };
/* The exit status if no library drives the device. */
enum { NOT_INSTALLED = 2 };

#define MEASURED __attribute__((noinline, noclone))

static struct ibv_qp *qp;
static struct ibv_cq_ex *cq;
static char inlined[LEN];
static struct ibv_sge sge = {.addr = 0x1000, .length = 64, .lkey = KEY};
static struct ibv_send_wr inlines[BATCH], writes[BATCH];
static struct ibv_recv_wr recvs[BATCH];
static struct ibv_wc wcs[BATCH];
static uint64_t wr_id;

static void check(int ok, const char *what) {
	if (!ok) {
		perror(what);
		exit(1);
	}
}

/* The lists share their last element, which alone is a list of one. */
static inline void post_send(struct ibv_send_wr *list) {
	struct ibv_send_wr *bad;
	check(ibv_post_send(qp, list, &bad) == 0, "ibv_post_send");
}

static inline void post_recv(struct ibv_recv_wr *list) {
	struct ibv_recv_wr *bad;
	check(ibv_post_recv(qp, list, &bad) == 0, "ibv_post_recv");
}

static inline void batch(int count, int is_inline) {
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	ibv_wr_start(ex);
	for (int i = 0; i < count; i++) {
		ex->wr_id = wr_id + i;
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(ex, KEY, REMOTE);
		if (is_inline)
			ibv_wr_set_inline_data(ex, inlined, LEN);
		else
			ibv_wr_set_sge(ex, sge.lkey, sge.addr, sge.length);
	}
	check(ibv_wr_complete(ex) == 0, "ibv_wr_complete");
}

static inline void poll_cq(int room, int expected) {
	check(ibv_poll_cq(ibv_cq_ex_to_cq(cq), room, wcs) == expected, "ibv_poll_cq");
}

/* Makes the compiler assume that a value is read. */
#define READ(value) __asm__ volatile("" : : "r"(value))

static inline void lend(int count) {
	struct ibv_poll_cq_attr attr = {0};
	int result = ibv_start_poll(cq, &attr);
	for (int left = count - 1; left >= 0; left--) {
		check(result == 0, "ibv_start_poll");
		READ(cq->wr_id);
		READ(cq->status);
		READ(ibv_wc_read_opcode(cq));
		READ(ibv_wc_read_byte_len(cq));
		READ(ibv_wc_read_wc_flags(cq));
		READ(ibv_wc_read_qp_num(cq));
		if (left > 0)
			result = ibv_next_poll(cq);
	}
	ibv_end_poll(cq);
}

MEASURED void c_cost_nothing(void) {
	__asm__ volatile("");
}

/* Name, completions per call, function. */
#define FUNCTIONS(F) \
	F(c_cost_mlx5_inline_1_c, 0, post_send(&inlines[BATCH - 1])) \
	F(c_cost_mlx5_inline_16_c, 0, post_send(inlines)) \
	F(c_cost_mlx5_write_1_c, 0, post_send(&writes[BATCH - 1])) \
	F(c_cost_mlx5_write_16_c, 0, post_send(writes)) \
	F(c_cost_mlx5_wr_inline_1_c, 0, batch(1, 1)) \
	F(c_cost_mlx5_wr_inline_16_c, 0, batch(BATCH, 1)) \
	F(c_cost_mlx5_wr_write_1_c, 0, batch(1, 0)) \
	F(c_cost_mlx5_wr_write_16_c, 0, batch(BATCH, 0)) \
	F(c_cost_mlx5_recv_1_c, 0, post_recv(&recvs[BATCH - 1])) \
	F(c_cost_mlx5_recv_16_c, 0, post_recv(recvs)) \
	F(c_cost_mlx5_poll_1_c, 1, poll_cq(1, 1)) \
	F(c_cost_mlx5_poll_16_c, BATCH, poll_cq(BATCH, BATCH)) \
	F(c_cost_mlx5_empty_c, 0, poll_cq(8, 0)) \
	F(c_cost_mlx5_lend_1_c, 1, lend(1)) \
	F(c_cost_mlx5_lend_16_c, BATCH, lend(BATCH))

#define DEFINITION(name, completions, body) \
	MEASURED void name(void) { \
		body; \
	}
FUNCTIONS(DEFINITION)

#define ROW(name, completions, body) {#name, name, completions},
static const struct {
	const char *name;
	void (*call)(void);
	int completions;
} ROWS[] = {{"c_cost_nothing", c_cost_nothing, 0}, FUNCTIONS(ROW)};

static void create(struct ibv_context *context) {
	struct ibv_pd *pd = ibv_alloc_pd(context);
	check(pd != NULL, "ibv_alloc_pd");
	struct ibv_cq_init_attr_ex completions = {.cqe = SLOTS, .wc_flags = IBV_WC_STANDARD_FLAGS};
	cq = ibv_create_cq_ex(context, &completions);
	check(cq != NULL, "ibv_create_cq_ex");
	struct ibv_qp_init_attr_ex init = {
		.send_cq = ibv_cq_ex_to_cq(cq),
		.recv_cq = ibv_cq_ex_to_cq(cq),
		.cap = {.max_send_wr = SLOTS, .max_recv_wr = SLOTS, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = LEN},
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE,
	};
	qp = ibv_create_qp_ex(context, &init);
	check(qp != NULL, "ibv_create_qp_ex");
	for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		struct ibv_qp_attr attr = {.qp_state = state, .port_num = 1};
		check(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0, "ibv_modify_qp");
	}
}

static void make_lists(void) {
	static struct ibv_sge data = {.length = LEN};
	data.addr = (uintptr_t)inlined;
	for (int i = 0; i < BATCH; i++) {
		int has_next = i + 1 < BATCH;
		writes[i] = (struct ibv_send_wr){
			.next = has_next ? &writes[i + 1] : NULL,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = {.remote_addr = REMOTE, .rkey = KEY},
		};
		inlines[i] = writes[i];
		inlines[i].next = has_next ? &inlines[i + 1] : NULL;
		inlines[i].sg_list = &data;
		inlines[i].send_flags |= IBV_SEND_INLINE;
		recvs[i] = (struct ibv_recv_wr){.next = has_next ? &recvs[i + 1] : NULL, .sg_list = &sge, .num_sge = 1};
	}
}

int main(int argc, char **argv) {
	struct ibv_device **list = ibv_get_device_list(NULL);
	check(list != NULL, "ibv_get_device_list");
	if (list[0] == NULL)
		return NOT_INSTALLED;
	struct ibv_context *context = ibv_open_device(list[0]);
	check(context != NULL, "ibv_open_device");
	if (argc < 2) {
		Dl_info library;
		check(dladdr((void *)context->ops.post_send, &library) != 0, "dladdr");
		char *file = realpath(library.dli_fname, NULL);
		check(file != NULL, library.dli_fname);
		puts(file);
		return 0;
	}
	create(context);
	make_lists();
	for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
		if (strcmp(argv[1], ROWS[i].name) != 0)
			continue;
		complete(CALLS * ROWS[i].completions);
		for (int calls = 0; calls < CALLS; calls++, wr_id += BATCH)
			ROWS[i].call();
		return 0;
	}
	fprintf(stderr, "cost: no such function\n");
	return 1;
}
