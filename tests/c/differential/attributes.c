/* Makes each call of libibverbs that reaches the kernel, on one device, to compare the commands of two
 * libraries.
 *
 * attributes DEVICE GID_INDEX
 *
 * Before each call it writes the step's name to file descriptor -1. The write fails, but shows a
 * tracer the start of the step. The result of each step is printed. All numbers chosen here are the
 * same in each run, including addresses. A GID_INDEX of -1 means paths without a GRH. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	PORT = 1,
	SIZE = 1 << 20,
	PAGE = 4096,
	QKEY = 0x1234,
	PEER = 0x11,
	ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
};

static uint8_t *const MEMORY = (uint8_t *)0x200000000000;

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_port_attr port;
static int gid_index;

/* Steps. */

static char step[96];

static void begin(const char *name)
{
	char text[sizeof(step) + 5];
	snprintf(step, sizeof(step), "%s", name);
	int length = snprintf(text, sizeof(text), "step %s", step);
	if (write(-1, text, (size_t)length) >= 0)
		abort();
	errno = 0;
}

static bool end(bool is_done)
{
	int error = errno;
	if (is_done)
		printf("%s: done\n", step);
	else
		printf("%s: errno %d\n", step, error);
	fflush(stdout);
	return is_done;
}

/* A call that returns a pointer. */
#define MAKE(name, pointer, call) (begin(name), (pointer) = (call), end((pointer) != NULL))

/* A call that returns an errno, or -1. */
#define CALL(name, call) (begin(name), end(succeeded(call)))

static bool succeeded(int result)
{
	if (result > 0)
		errno = result;
	return result == 0;
}

/* Begins the step that destroys the object of another step. */
static void begin_end_of(const char *name)
{
	char text[sizeof(step)];
	snprintf(text, sizeof(text), "end of: %.*s", (int)sizeof(text) - 9, name);
	begin(text);
}

/* Skips steps on objects that earlier steps could not create. */
#define IF(pointer, statement)                                                                     \
	do {                                                                                       \
		if (pointer)                                                                       \
			statement;                                                                 \
	} while (0)

/* The device. */

static void open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL), *device = NULL;
	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			device = list[i];
	if (!device) {
		fprintf(stderr, "there is no device %s\n", name);
		exit(1);
	}
	if (!MAKE("open_device", context, ibv_open_device(device)))
		exit(1);
	ibv_free_device_list(list);
}

static void queries(void)
{
	struct ibv_device_attr attr;
	struct ibv_device_attr_ex attr_ex;
	struct ibv_gid_entry entries[16];
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	union ibv_gid gid;
	uint16_t pkey;
	CALL("query_device", ibv_query_device(context, &attr));
	CALL("query_device_ex", ibv_query_device_ex(context, NULL, &attr_ex));
	CALL("query_port", ibv_query_port(context, PORT, &port));
	CALL("query_gid", ibv_query_gid(context, PORT, 0, &gid));
	CALL("query_gid_ex", ibv_query_gid_ex(context, PORT, 0, entries, 0));
	CALL("query_gid_table", ibv_query_gid_table(context, entries, 16, 0) < 0);
	CALL("query_pkey", ibv_query_pkey(context, PORT, 0, &pkey));
	CALL("query_rt_values_ex", ibv_query_rt_values_ex(context, &values));
}

static void import_device(void)
{
	struct ibv_context *imported;
	struct ibv_pd *pd_imported = NULL;
	struct ibv_mr *mr, *mr_imported = NULL;
	if (!MAKE("import_device", imported, ibv_import_device(dup(context->cmd_fd))))
		return;
	MAKE("import_pd", pd_imported, ibv_import_pd(imported, pd->handle));
	if (MAKE("reg_mr to import", mr, ibv_reg_mr(pd, MEMORY, PAGE, ACCESS))) {
		IF(pd_imported, MAKE("import_mr", mr_imported, ibv_import_mr(pd_imported, mr->handle)));
		IF(mr_imported, (begin("unimport_mr"), ibv_unimport_mr(mr_imported), end(true)));
		CALL("dereg_mr of an imported region", ibv_dereg_mr(mr));
	}
	IF(pd_imported, (begin("unimport_pd"), ibv_unimport_pd(pd_imported), end(true)));
	CALL("close_device of an import", ibv_close_device(imported));
}

/* Memory. */

static void region(const char *name, struct ibv_pd *of, void *addr, size_t length, uint64_t iova,
		   unsigned access)
{
	struct ibv_mr *mr;
	if (!MAKE(name, mr, ibv_reg_mr_iova2(of, addr, length, iova, access)))
		return;
	begin_end_of(name);
	end(succeeded(ibv_dereg_mr(mr)));
}

static void memory(void)
{
	struct ibv_pd *other;
	struct ibv_mr *mr;
	uint64_t at = (uintptr_t)MEMORY;
	region("reg_mr", pd, MEMORY, SIZE, at, ACCESS);
	region("reg_mr of 100 bytes", pd, MEMORY + 40, 100, at + 40, IBV_ACCESS_LOCAL_WRITE);
	region("reg_mr to read", pd, MEMORY, PAGE, at, 0);
	region("reg_mr with atomics and windows", pd, MEMORY, PAGE, at,
	       ACCESS | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND);
	region("reg_mr relaxed", pd, MEMORY, PAGE, at, ACCESS | IBV_ACCESS_RELAXED_ORDERING);
	region("reg_mr with another address", pd, MEMORY, PAGE, 0x7000, ACCESS);
	region("reg_mr from zero", pd, MEMORY + 16, PAGE, 16, ACCESS | IBV_ACCESS_ZERO_BASED);
	region("reg_mr on demand", pd, MEMORY, SIZE, at, ACCESS | IBV_ACCESS_ON_DEMAND);
	region("reg_mr of all memory", pd, NULL, SIZE_MAX, 0, ACCESS | IBV_ACCESS_ON_DEMAND);
	region("reg_mr of huge pages", pd, MEMORY, SIZE, at, ACCESS | IBV_ACCESS_HUGETLB);
	region("reg_mr of nothing", pd, MEMORY + 2 * SIZE, PAGE, at, ACCESS);

	int file = open("/dev/null", O_RDWR);
	if (MAKE("reg_dmabuf_mr of another file", mr, ibv_reg_dmabuf_mr(pd, PAGE, PAGE, 2 * PAGE, file, ACCESS)))
		CALL("dereg_mr of a dma-buf", ibv_dereg_mr(mr));
	close(file);

	MAKE("reg_mr to change", mr, ibv_reg_mr(pd, MEMORY, PAGE, ACCESS));
	MAKE("alloc_pd for another domain", other, ibv_alloc_pd(context));
	CALL("rereg_mr with other memory",
	     ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, MEMORY + PAGE, 3 * PAGE, 0));
	CALL("rereg_mr with another domain", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0));
	CALL("rereg_mr with other rights",
	     ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));
	CALL("rereg_mr with everything",
	     ibv_rereg_mr(mr,
			  IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS,
			  pd, MEMORY, SIZE, ACCESS));
	CALL("dereg_mr of a changed region", ibv_dereg_mr(mr));
	CALL("dealloc_pd of the other domain", ibv_dealloc_pd(other));

	if (MAKE("reg_mr to advise", mr, ibv_reg_mr(pd, MEMORY, SIZE, ACCESS | IBV_ACCESS_ON_DEMAND))) {
		struct ibv_sge list[2] = {
			{ .addr = at, .length = 2 * PAGE, .lkey = mr->lkey },
			{ .addr = at + 8 * PAGE, .length = PAGE, .lkey = mr->lkey },
		};
		CALL("advise_mr", ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH,
						list, 2));
		CALL("advise_mr to write",
		     ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, list, 1));
		CALL("advise_mr without a wait", ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, list, 1));
		CALL("dereg_mr of an advised region", ibv_dereg_mr(mr));
	}
	if (MAKE("alloc_null_mr", mr, ibv_alloc_null_mr(pd)))
		CALL("dereg_mr of a null region", ibv_dereg_mr(mr));
}

static void device_memory(void)
{
	struct ibv_alloc_dm_attr attr = { .length = 256, .log_align_req = 3 };
	struct ibv_dm *dm;
	struct ibv_mr *mr;
	uint8_t bytes[16] = { 0 };
	if (!MAKE("alloc_dm", dm, ibv_alloc_dm(context, &attr)))
		return;
	CALL("memcpy_to_dm", ibv_memcpy_to_dm(dm, 0, bytes, sizeof(bytes)));
	CALL("memcpy_from_dm", ibv_memcpy_from_dm(bytes, dm, 0, sizeof(bytes)));
	if (MAKE("reg_dm_mr", mr, ibv_reg_dm_mr(pd, dm, 64, 128, ACCESS | IBV_ACCESS_ZERO_BASED)))
		CALL("dereg_mr of device memory", ibv_dereg_mr(mr));
	CALL("free_dm", ibv_free_dm(dm));
}

static void windows(void)
{
	struct ibv_mw *mw;
	if (MAKE("alloc_mw of type 1", mw, ibv_alloc_mw(pd, IBV_MW_TYPE_1)))
		CALL("dealloc_mw of type 1", ibv_dealloc_mw(mw));
	if (MAKE("alloc_mw of type 2", mw, ibv_alloc_mw(pd, IBV_MW_TYPE_2)))
		CALL("dealloc_mw of type 2", ibv_dealloc_mw(mw));
}

/* Completion queues. */

static void extended_cq(const char *name, struct ibv_cq_init_attr_ex attr)
{
	struct ibv_cq_ex *made;
	if (!MAKE(name, made, ibv_create_cq_ex(context, &attr)))
		return;
	begin_end_of(name);
	end(succeeded(ibv_destroy_cq(ibv_cq_ex_to_cq(made))));
}

static void completion_queues(void)
{
	struct ibv_comp_channel *channel;
	struct ibv_modify_cq_attr moderation = {
		.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { .cq_count = 4, .cq_period = 10 } };
	struct ibv_cq *made;
	MAKE("create_comp_channel", channel, ibv_create_comp_channel(context));
	if (MAKE("create_cq", made, ibv_create_cq(context, 60, NULL, NULL, 0))) {
		CALL("resize_cq", ibv_resize_cq(made, 200));
		CALL("modify_cq", ibv_modify_cq(made, &moderation));
		CALL("destroy_cq", ibv_destroy_cq(made));
	}
	if (MAKE("create_cq with a channel", made, ibv_create_cq(context, 1000, (void *)0x1234, channel, 1))) {
		CALL("req_notify_cq", ibv_req_notify_cq(made, 0));
		CALL("destroy_cq with a channel", ibv_destroy_cq(made));
	}
	extended_cq("create_cq_ex", (struct ibv_cq_init_attr_ex){ .cqe = 60 });
	extended_cq("create_cq_ex with a channel", (struct ibv_cq_init_attr_ex){
		.cqe = 60, .channel = channel, .comp_vector = 1, .wc_flags = IBV_WC_STANDARD_FLAGS });
	extended_cq("create_cq_ex with the device's time", (struct ibv_cq_init_attr_ex){
		.cqe = 60, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP });
	extended_cq("create_cq_ex with the system's time", (struct ibv_cq_init_attr_ex){
		.cqe = 60, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK });
	extended_cq("create_cq_ex of one thread", (struct ibv_cq_init_attr_ex){
		.cqe = 60, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
		.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED });
	extended_cq("create_cq_ex without overrun", (struct ibv_cq_init_attr_ex){
		.cqe = 60, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
		.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN });
	setenv("MLX5_CQE_SIZE", "128", 1);
	extended_cq("create_cq_ex of 128 bytes", (struct ibv_cq_init_attr_ex){ .cqe = 60 });
	unsetenv("MLX5_CQE_SIZE");
	IF(channel, CALL("destroy_comp_channel", ibv_destroy_comp_channel(channel)));
}

/* Queue pairs. */

static struct ibv_ah_attr own_path(void)
{
	struct ibv_ah_attr path = { .port_num = PORT, .dlid = port.lid };
	if (gid_index >= 0) {
		path.is_global = 1;
		path.grh.sgid_index = (uint8_t)gid_index;
		path.grh.hop_limit = 64;
		path.grh.flow_label = 0x12345;
		path.grh.traffic_class = 7;
		ibv_query_gid(context, PORT, gid_index, &path.grh.dgid);
	}
	path.sl = 1;
	return path;
}

static struct ibv_qp_init_attr_ex usual(enum ibv_qp_type type)
{
	return (struct ibv_qp_init_attr_ex){
		.qp_type = type,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 8, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 3 },
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pd,
	};
}

static void extended_qp(const char *name, struct ibv_qp_init_attr_ex attr)
{
	struct ibv_qp *qp;
	if (!MAKE(name, qp, ibv_create_qp_ex(context, &attr)))
		return;
	begin_end_of(name);
	end(succeeded(ibv_destroy_qp(qp)));
}

static bool modify(const char *name, struct ibv_qp *qp, int mask, struct ibv_qp_attr attr)
{
	return CALL(name, ibv_modify_qp(qp, &attr, mask));
}

/* Moves a queue pair of a connected type through its states. */
static void connected(enum ibv_qp_type type, const char *const names[])
{
	struct ibv_qp_init_attr attr = {
		.qp_type = type,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 8, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 3,
			 .max_inline_data = 64 },
		.sq_sig_all = 1,
	};
	bool is_reliable = type == IBV_QPT_RC;
	struct ibv_qp_attr queried;
	struct ibv_qp_init_attr queried_init;
	struct ibv_qp *qp;
	int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	int rts = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (is_reliable) {
		rtr |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		rts |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	if (!MAKE(names[0], qp, ibv_create_qp(pd, &attr)))
		return;
	modify(names[1], qp, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	       (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = PORT,
				     .qp_access_flags = IBV_ACCESS_REMOTE_WRITE });
	modify(names[2], qp, rtr,
	       (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = PEER,
				     .rq_psn = 100, .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
				     .ah_attr = own_path() });
	modify(names[3], qp, rts,
	       (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 200, .timeout = 14, .retry_cnt = 7,
				     .rnr_retry = 6, .max_rd_atomic = 4 });
	CALL(names[4], ibv_query_qp(qp, &queried, IBV_QP_STATE | IBV_QP_AV | IBV_QP_CAP, &queried_init));
	modify(names[5], qp, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS,
	       (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_RTS,
				     .qp_access_flags = IBV_ACCESS_REMOTE_WRITE });
	modify(names[6], qp, IBV_QP_STATE, (struct ibv_qp_attr){ .qp_state = IBV_QPS_SQD });
	modify(names[7], qp, IBV_QP_STATE, (struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR });
	modify(names[8], qp, IBV_QP_STATE, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET });
	CALL(names[9], ibv_destroy_qp(qp));
}

/* A step whose result are the options returned by a query. */
static void tell_options(const char *name, const struct ibv_ece *ece)
{
	begin(name);
	printf("%s: vendor %#x, options %#x, mask %#x\n", step, ece->vendor_id, ece->options, ece->comp_mask);
	fflush(stdout);
}

/* Enhanced connection establishment, and the other attributes of RTR. */
static void options(void)
{
	struct ibv_qp_init_attr_ex attr = usual(IBV_QPT_RC);
	struct ibv_ece ece = { 0 };
	struct ibv_qp *qp;
	if (!MAKE("create_qp for options", qp, ibv_create_qp_ex(context, &attr)))
		return;
	CALL("query_ece", ibv_query_ece(qp, &ece));
	tell_options("options of a new queue pair", &ece);
	CALL("set_ece of no vendor", ibv_set_ece(qp, &(struct ibv_ece){ .options = ece.options }));
	CALL("set_ece of another vendor", ibv_set_ece(qp, &(struct ibv_ece){ .vendor_id = 1 }));
	CALL("set_ece with a mask",
	     ibv_set_ece(qp, &(struct ibv_ece){ .vendor_id = ece.vendor_id, .comp_mask = 1 }));
	ece.options |= 0x10;
	CALL("set_ece", ibv_set_ece(qp, &ece));
	CALL("query_ece of options that are set", ibv_query_ece(qp, &ece));
	tell_options("options that are set", &ece);
	modify("to INIT with options", qp,
	       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	       (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = ACCESS });
	modify("to INIT again", qp, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS,
	       (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .qp_access_flags = 0 });
	modify("to RTR with options", qp,
	       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | IBV_QP_PKEY_INDEX,
	       (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = PEER,
				     .rq_psn = 0xfffffe, .max_dest_rd_atomic = 16, .min_rnr_timer = 31,
				     .ah_attr = own_path() });
	CALL("query_ece of a connected one", ibv_query_ece(qp, &ece));
	tell_options("options of a connected queue pair", &ece);
	modify("to a failed state", qp, IBV_QP_STATE, (struct ibv_qp_attr){ .qp_state = IBV_QPS_SQE });
	CALL("destroy_qp with options", ibv_destroy_qp(qp));
}

static void datagrams(void)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_UD,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 8, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 3 },
	};
	struct ibv_ah_attr path = own_path();
	union ibv_gid group = { .raw = { 0xff, 0x12, 0x60, 0x1b, 0xff, 0xff, [15] = 1 } };
	struct ibv_qp *qp;
	struct ibv_ah *ah;
	if (!MAKE("create_qp UD", qp, ibv_create_qp(pd, &attr)))
		return;
	modify("UD to INIT", qp, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
	       (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = PORT, .qkey = QKEY });
	modify("UD to RTR", qp, IBV_QP_STATE, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR });
	modify("UD to RTS", qp, IBV_QP_STATE | IBV_QP_SQ_PSN,
	       (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 5 });
	modify("UD with another key", qp, IBV_QP_STATE | IBV_QP_QKEY,
	       (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .qkey = QKEY + 1 });
	CALL("attach_mcast", ibv_attach_mcast(qp, &group, 0xc001));
	CALL("detach_mcast", ibv_detach_mcast(qp, &group, 0xc001));
	if (MAKE("create_ah", ah, ibv_create_ah(pd, &path)))
		CALL("destroy_ah", ibv_destroy_ah(ah));
	CALL("destroy_qp UD", ibv_destroy_qp(qp));
}

static void queue_pairs(void)
{
	static const char *const RC[] = { "create_qp RC", "RC to INIT", "RC to RTR", "RC to RTS", "query_qp RC",
					  "RC with other rights", "RC to SQD", "RC to ERR", "RC to RESET",
					  "destroy_qp RC" };
	static const char *const UC[] = { "create_qp UC", "UC to INIT", "UC to RTR", "UC to RTS", "query_qp UC",
					  "UC with other rights", "UC to SQD", "UC to ERR", "UC to RESET",
					  "destroy_qp UC" };
	struct ibv_qp_init_attr_ex attr;
	connected(IBV_QPT_RC, RC);
	connected(IBV_QPT_UC, UC);
	options();
	datagrams();

	attr = usual(IBV_QPT_RC);
	attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	attr.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ |
			      IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	extended_qp("create_qp_ex RC for the builder", attr);
	attr = usual(IBV_QPT_RC);
	attr.cap = (struct ibv_qp_cap){ .max_send_wr = 100, .max_send_sge = 8, .max_inline_data = 200 };
	extended_qp("create_qp_ex RC that only sends", attr);
	attr = usual(IBV_QPT_RC);
	attr.cap = (struct ibv_qp_cap){ .max_recv_wr = 100, .max_recv_sge = 8 };
	extended_qp("create_qp_ex RC that only receives", attr);
	attr = usual(IBV_QPT_UD);
	attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
	attr.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
	extended_qp("create_qp_ex UD that hears no echo", attr);
	setenv("MLX5_SCATTER_TO_CQE", "1", 1);
	extended_qp("create_qp_ex RC with data in completions", usual(IBV_QPT_RC));
	setenv("MLX5_SCATTER_TO_CQE", "0", 1);
	setenv("MLX5_QP_SIGNATURE", "1", 1);
	extended_qp("create_qp_ex RC with signatures", usual(IBV_QPT_RC));
	unsetenv("MLX5_QP_SIGNATURE");
	attr = usual(IBV_QPT_RAW_PACKET);
	extended_qp("create_qp_ex RAW_PACKET", attr);
	attr.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
	attr.max_tso_header = 64;
	extended_qp("create_qp_ex RAW_PACKET with segmentation", attr);
	attr = usual(IBV_QPT_RAW_PACKET);
	attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
	attr.create_flags = IBV_QP_CREATE_CVLAN_STRIPPING;
	extended_qp("create_qp_ex RAW_PACKET without tags", attr);
	attr.create_flags = IBV_QP_CREATE_SCATTER_FCS;
	extended_qp("create_qp_ex RAW_PACKET with checksums", attr);
}

/* Thread domains and parent domains. */

static void domains(void)
{
	struct ibv_td_init_attr none = { 0 };
	struct ibv_parent_domain_init_attr attr = { .pd = pd };
	struct ibv_td *td;
	struct ibv_pd *parent;
	if (!MAKE("alloc_td", td, ibv_alloc_td(context, &none)))
		return;
	attr.td = td;
	if (MAKE("alloc_parent_domain", parent, ibv_alloc_parent_domain(context, &attr))) {
		struct ibv_qp_init_attr_ex init = usual(IBV_QPT_RC);
		init.pd = parent;
		extended_qp("create_qp_ex in a thread domain", init);
		region("reg_mr in a parent domain", parent, MEMORY, PAGE, (uintptr_t)MEMORY, ACCESS);
		extended_cq("create_cq_ex in a parent domain", (struct ibv_cq_init_attr_ex){
			.cqe = 60, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = parent });
		CALL("dealloc_pd of a parent domain", ibv_dealloc_pd(parent));
	}
	CALL("dealloc_td", ibv_dealloc_td(td));
	attr.td = NULL;
	if (MAKE("alloc_parent_domain of one thread", parent, ibv_alloc_parent_domain(context, &attr)))
		CALL("dealloc_pd of one thread", ibv_dealloc_pd(parent));
}

/* Shared receive queues, and XRC. */

static void shared_queues(void)
{
	struct ibv_srq_init_attr init = { .srq_context = (void *)0x77,
					  .attr = { .max_wr = 100, .max_sge = 3, .srq_limit = 0 } };
	struct ibv_srq_attr limit = { .srq_limit = 10 }, queried;
	struct ibv_srq *srq;
	if (MAKE("create_srq", srq, ibv_create_srq(pd, &init))) {
		struct ibv_qp_init_attr_ex attr = usual(IBV_QPT_RC);
		attr.srq = srq;
		attr.cap.max_recv_wr = attr.cap.max_recv_sge = 0;
		extended_qp("create_qp_ex RC with a shared queue", attr);
		attr.qp_type = IBV_QPT_UD;
		extended_qp("create_qp_ex UD with a shared queue", attr);
		CALL("modify_srq", ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
		CALL("query_srq", ibv_query_srq(srq, &queried));
		CALL("destroy_srq", ibv_destroy_srq(srq));
	}
	struct ibv_srq_init_attr_ex basic = {
		.attr = { .max_wr = 15, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_BASIC,
		.pd = pd,
	};
	if (MAKE("create_srq_ex", srq, ibv_create_srq_ex(context, &basic)))
		CALL("destroy_srq of the extended call", ibv_destroy_srq(srq));
}

static void xrc(void)
{
	struct ibv_xrcd_init_attr init = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	struct ibv_xrcd *xrcd, *named;
	struct ibv_srq *srq;
	struct ibv_qp *target;
	int file = open("/tmp", O_RDONLY);
	if (!MAKE("open_xrcd", xrcd, ibv_open_xrcd(context, &init)))
		return;
	init.fd = file;
	if (MAKE("open_xrcd of a file", named, ibv_open_xrcd(context, &init)))
		CALL("close_xrcd of a file", ibv_close_xrcd(named));
	struct ibv_srq_init_attr_ex shared = {
		.attr = { .max_wr = 15, .max_sge = 2 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ |
			     IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_XRC,
		.pd = pd,
		.xrcd = xrcd,
		.cq = cq,
	};
	if (MAKE("create_srq_ex XRC", srq, ibv_create_srq_ex(context, &shared)))
		CALL("destroy_srq XRC", ibv_destroy_srq(srq));
	struct ibv_qp_init_attr_ex attr = usual(IBV_QPT_XRC_SEND);
	attr.cap.max_recv_wr = attr.cap.max_recv_sge = 0;
	attr.recv_cq = NULL;
	extended_qp("create_qp_ex XRC_SEND", attr);
	attr = (struct ibv_qp_init_attr_ex){
		.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	if (MAKE("create_qp_ex XRC_RECV", target, ibv_create_qp_ex(context, &attr))) {
		modify("XRC_RECV to INIT", target,
		       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
		       (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = PORT,
					     .qp_access_flags = IBV_ACCESS_REMOTE_WRITE });
		CALL("destroy_qp XRC_RECV", ibv_destroy_qp(target));
	}
	CALL("close_xrcd", ibv_close_xrcd(xrcd));
	close(file);
}

/* The last step, because libmlx5 of rdma-core 44 crashes when an opened queue pair is destroyed. */
static void opened_qp(void)
{
	struct ibv_xrcd_init_attr init = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	struct ibv_xrcd *xrcd;
	struct ibv_qp *target, *opened;
	if (!MAKE("open_xrcd to share", xrcd, ibv_open_xrcd(context, &init)))
		return;
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	if (!MAKE("create_qp_ex XRC_RECV to share", target, ibv_create_qp_ex(context, &attr)))
		return;
	struct ibv_qp_open_attr open_attr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = target->qp_num,
		.xrcd = xrcd,
		.qp_type = IBV_QPT_XRC_RECV,
	};
	MAKE("open_qp", opened, ibv_open_qp(context, &open_attr));
}

/* Receive queues, tables and rules. */

static void rule(const char *const names[], struct ibv_qp *qp, struct ibv_counters *counters)
{
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
		struct ibv_flow_spec_ipv4 ipv4;
		struct ibv_flow_spec_tcp_udp udp;
		struct ibv_flow_spec_counter_action count;
	} __attribute__((packed)) rules = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(rules), .num_of_specs = counters ? 4 : 3,
			  .port = PORT },
		.eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof(rules.eth),
			 .val = { .dst_mac = { 2, 0, 0, 0, 0, 7 }, .ether_type = 0x0008 },
			 .mask = { .dst_mac = { 255, 255, 255, 255, 255, 255 }, .ether_type = 0xffff } },
		.ipv4 = { .type = IBV_FLOW_SPEC_IPV4, .size = sizeof(rules.ipv4),
			  .val = { .dst_ip = 0x0100000a }, .mask = { .dst_ip = 0xffffffff } },
		.udp = { .type = IBV_FLOW_SPEC_UDP, .size = sizeof(rules.udp), .val = { .dst_port = 0x0100 },
			 .mask = { .dst_port = 0xffff } },
		.count = { .type = IBV_FLOW_SPEC_ACTION_COUNT, .size = sizeof(rules.count), .counters = counters },
	};
	void *start = &rules;
	struct ibv_flow *flow;
	uint64_t values[2];
	if (!counters)
		rules.attr.size -= sizeof(rules.count);
	if (!MAKE(names[0], flow, ibv_create_flow(qp, start)))
		return;
	if (counters)
		CALL("read_counters",
		     ibv_read_counters(counters, values, 2, IBV_READ_COUNTERS_ATTR_PREFER_CACHED));
	CALL(names[1], ibv_destroy_flow(flow));
}

static void packets(void)
{
	static const char *const PLAIN[] = { "create_flow", "destroy_flow" };
	static const char *const COUNTED[] = { "create_flow with counters", "destroy_flow with counters" };
	static uint8_t key[40] = { 0x6d, 0x5a, 0x56, 0xda };
	struct ibv_wq_init_attr init = { .wq_type = IBV_WQT_RQ, .max_wr = 32, .max_sge = 2, .pd = pd, .cq = cq };
	struct ibv_wq_attr ready = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY };
	struct ibv_counters_init_attr none = { 0 };
	struct ibv_counter_attach_attr attach = { .counter_desc = IBV_COUNTER_PACKETS, .index = 0 };
	struct ibv_wq *wq;
	struct ibv_rwq_ind_table *table;
	struct ibv_counters *counters;
	struct ibv_flow_action_esp_attr esp = { .esp_attr = &(struct ibv_flow_action_esp){ 0 } };
	struct ibv_flow_action *action;
	struct ibv_qp *qp;
	if (MAKE("create_counters", counters, ibv_create_counters(context, &none))) {
		CALL("attach_counters", ibv_attach_counters_point_flow(counters, &attach, NULL));
		attach.counter_desc = IBV_COUNTER_BYTES;
		attach.index = 1;
		CALL("attach_counters of bytes", ibv_attach_counters_point_flow(counters, &attach, NULL));
	}
	struct ibv_qp_init_attr_ex raw = usual(IBV_QPT_RAW_PACKET);
	if (MAKE("create_qp_ex for rules", qp, ibv_create_qp_ex(context, &raw))) {
		modify("RAW_PACKET to INIT", qp, IBV_QP_STATE | IBV_QP_PORT,
		       (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = PORT });
		modify("RAW_PACKET to RTR", qp, IBV_QP_STATE, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR });
		modify("RAW_PACKET to RTS", qp, IBV_QP_STATE, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS });
		struct ibv_qp_rate_limit_attr rate = { .rate_limit = 100000, .max_burst_sz = 0 };
		CALL("modify_qp_rate_limit", ibv_modify_qp_rate_limit(qp, &rate));
		modify("RAW_PACKET with a rate", qp, IBV_QP_STATE | IBV_QP_RATE_LIMIT,
		       (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .rate_limit = 200000 });
		rule(PLAIN, qp, NULL);
		if (counters)
			rule(COUNTED, qp, counters);
		CALL("destroy_qp for rules", ibv_destroy_qp(qp));
	}
	IF(counters, CALL("destroy_counters", ibv_destroy_counters(counters)));
	if (MAKE("create_flow_action_esp", action, ibv_create_flow_action_esp(context, &esp)))
		CALL("destroy_flow_action", ibv_destroy_flow_action(action));
	if (!MAKE("create_wq", wq, ibv_create_wq(context, &init)))
		return;
	CALL("modify_wq", ibv_modify_wq(wq, &ready));
	struct ibv_wq *list[1] = { wq };
	struct ibv_rwq_ind_table_init_attr table_init = { .log_ind_tbl_size = 0, .ind_tbl = list };
	if (MAKE("create_rwq_ind_table", table, ibv_create_rwq_ind_table(context, &table_init))) {
		struct ibv_qp_init_attr_ex attr = {
			.qp_type = IBV_QPT_RAW_PACKET,
			.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
			.pd = pd,
			.rwq_ind_tbl = table,
			.rx_hash_conf = {
				.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ,
				.rx_hash_key_len = sizeof(key),
				.rx_hash_key = key,
				.rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4,
			},
		};
		extended_qp("create_qp_ex with a table", attr);
		CALL("destroy_rwq_ind_table", ibv_destroy_rwq_ind_table(table));
	}
	CALL("destroy_wq", ibv_destroy_wq(wq));
}

int main(int argc, char *argv[])
{
	if (argc != 3) {
		fprintf(stderr, "usage: attributes DEVICE GID_INDEX\n");
		return 2;
	}
	gid_index = atoi(argv[2]);
	if (mmap(MEMORY, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) !=
	    MEMORY) {
		perror("mmap");
		return 1;
	}
	open_device(argv[1]);
	queries();
	if (!MAKE("alloc_pd", pd, ibv_alloc_pd(context)))
		return 1;
	import_device();
	memory();
	device_memory();
	windows();
	completion_queues();
	if (!MAKE("create_cq for queue pairs", cq, ibv_create_cq(context, 100, NULL, NULL, 0)))
		return 1;
	queue_pairs();
	domains();
	shared_queues();
	xrc();
	packets();
	opened_qp();
	CALL("destroy_cq of queue pairs", ibv_destroy_cq(cq));
	CALL("dealloc_pd", ibv_dealloc_pd(pd));
	CALL("close_device", ibv_close_device(context));
	return 0;
}
