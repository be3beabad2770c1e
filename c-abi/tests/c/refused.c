/* Null pointers, unknown members, flags and sizes: every call rejects them in its own way, and none
 * crashes. rdma-core's library crashes on most of the null pointers. */
#include <dlfcn.h>
#include <sys/mman.h>

#include "test.h"

static struct ibv_context *context;
static struct side side;

/* The file that the library logs to. */
static int log_fd;

static off_t log_size(void)
{
	return lseek(log_fd, 0, SEEK_END);
}

/* Ends the program unless the check, a refused call, adds a line to the log. */
#define LOGS(check)                                                                                \
	do {                                                                                       \
		off_t before_ = log_size();                                                        \
		check;                                                                             \
		if (log_size() == before_) {                                                       \
			fprintf(stderr, "%s:%d: nothing is logged: %s\n", __FILE__, __LINE__,       \
				#check);                                                           \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

/* Makes the library log to a file in memory. */
static void begin_log(void)
{
	char path[64];
	log_fd = memfd_create("log", 0);
	CHECK(log_fd >= 0);
	snprintf(path, sizeof path, "/proc/self/fd/%d", log_fd);
	CHECK(setenv("VERBS_LOG_LEVEL", "1", 1) == 0 && setenv("VERBS_LOG_FILE", path, 1) == 0);
}

/* Ends the program if a line of the log has no more than the words of EINVAL. Those of EOPNOTSUPP
 * say that the device lacks the call. */
static void every_refusal_has_a_cause(void)
{
	off_t size = log_size();
	char *log = calloc(1, (size_t)size + 1);
	CHECK(log != NULL && pread(log_fd, log, (size_t)size, 0) == size);
	for (char *line = strtok(log, "\n"); line; line = strtok(NULL, "\n")) {
		if (strstr(line, ": Invalid argument (EINVAL)")) {
			fprintf(stderr, "refused.c: no cause is logged: %s\n", line);
			exit(1);
		}
	}
	free(log);
}

static void null_objects(void)
{
	struct ibv_qp_attr attr = { 0 };
	struct ibv_qp_init_attr init = { 0 };
	struct ibv_srq_init_attr srq_init = { 0 };
	struct ibv_srq_attr srq_attr = { 0 };
	struct ibv_ah_attr path = { 0 };
	struct ibv_async_event event;
	struct ibv_device_attr device;
	struct ibv_cq *cq;
	struct ibv_wc wc = { 0 };
	struct ibv_gid_entry entry;
	struct ibv_ece ece = { 0 };
	union ibv_gid gid;
	void *cq_context;
	__be16 pkey;
	uint8_t mac[6];
	uint16_t vid;

	ibv_free_device_list(NULL);
	LOGS(CHECK(ibv_get_device_name(NULL) == NULL));
	CHECK(ibv_get_device_guid(NULL) == 0);
	LOGS(IS(ibv_get_device_index(NULL), -1));
	LOGS(REFUSED(ibv_open_device(NULL), EINVAL));
	LOGS(IS(ibv_close_device(NULL), EINVAL));
	LOGS(REFUSED(ibv_import_device(-1), EINVAL));
	LOGS(REFUSED(ibv_import_pd(NULL, 1), EINVAL));
	ibv_unimport_pd(NULL);
	LOGS(REFUSED(ibv_import_mr(NULL, 1), EINVAL));
	ibv_unimport_mr(NULL);
	LOGS(REFUSED(ibv_import_dm(NULL, 1), EINVAL));
	ibv_unimport_dm(NULL);
	LOGS(IS(ibv_query_device(NULL, &device), EINVAL));
	LOGS(IS(ibv_query_device(context, NULL), EINVAL));
	LOGS(IS(ibv_query_gid(NULL, 1, 0, &gid), -1));
	LOGS(IS(ibv_query_gid(context, 1, 0, NULL), -1));
	LOGS(IS(_ibv_query_gid_ex(NULL, 1, 0, &entry, 0, sizeof entry), EINVAL));
	LOGS(IS(_ibv_query_gid_ex(context, 1, 0, NULL, 0, sizeof entry), EINVAL));
	LOGS(IS(_ibv_query_gid_ex(context, 1, 0, &entry, 0, 4), EINVAL));
	LOGS(IS(_ibv_query_gid_table(NULL, &entry, 1, 0, sizeof entry), -EINVAL));
	LOGS(IS(_ibv_query_gid_table(context, NULL, 1, 0, sizeof entry), -EINVAL));
	LOGS(IS(_ibv_query_gid_table(context, &entry, 1, 0, 0), -EINVAL));
	LOGS(IS(_ibv_query_gid_table(context, &entry, 1, 7, sizeof entry), -EINVAL));
	LOGS(IS(ibv_query_pkey(NULL, 1, 0, &pkey), -1));
	LOGS(IS(ibv_query_pkey(context, 1, 0, NULL), -1));
	LOGS(IS(ibv_get_pkey_index(NULL, 1, 0xffff), -1));
	LOGS(IS(ibv_get_async_event(NULL, &event), -1));
	ibv_ack_async_event(NULL);

	LOGS(REFUSED(ibv_alloc_pd(NULL), EINVAL));
	LOGS(IS(ibv_dealloc_pd(NULL), EINVAL));
	/* The macros of verbs.h have the same names. */
	struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int) =
		(struct ibv_mr * (*)(struct ibv_pd *, void *, size_t, int)) dlsym(RTLD_DEFAULT, "ibv_reg_mr");
	LOGS(REFUSED(reg_mr(NULL, side.memory, 8, 0), EINVAL));
	LOGS(REFUSED(ibv_reg_mr_iova2(NULL, side.memory, 8, 0, 0), EINVAL));
	LOGS(REFUSED(ibv_reg_dmabuf_mr(NULL, 0, 8, 0, 0, 0), EINVAL));
	LOGS(IS(ibv_dereg_mr(NULL), EINVAL));
	IS(ibv_rereg_mr(NULL, 0, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);

	LOGS(REFUSED(ibv_create_comp_channel(NULL), EINVAL));
	LOGS(IS(ibv_destroy_comp_channel(NULL), EINVAL));
	LOGS(REFUSED(ibv_create_cq(NULL, 16, NULL, NULL, 0), EINVAL));
	LOGS(IS(ibv_resize_cq(NULL, 16), EINVAL));
	LOGS(IS(ibv_destroy_cq(NULL), EINVAL));
	LOGS(IS(ibv_get_cq_event(NULL, &cq, &cq_context), -1));
	ibv_ack_cq_events(NULL, 1);

	LOGS(REFUSED(ibv_create_srq(NULL, &srq_init), EINVAL));
	LOGS(REFUSED(ibv_create_srq(side.pd, NULL), EINVAL));
	LOGS(IS(ibv_modify_srq(NULL, &srq_attr, 0), EINVAL));
	LOGS(IS(ibv_query_srq(NULL, &srq_attr), EINVAL));
	LOGS(IS(ibv_destroy_srq(NULL), EINVAL));
	LOGS(REFUSED(ibv_create_qp(NULL, &init), EINVAL));
	LOGS(REFUSED(ibv_create_qp(side.pd, NULL), EINVAL));
	CHECK(ibv_qp_to_qp_ex(NULL) == NULL);
	LOGS(IS(ibv_modify_qp(NULL, &attr, IBV_QP_STATE), EINVAL));
	LOGS(IS(ibv_modify_qp(side.qp, NULL, IBV_QP_STATE), EINVAL));
	LOGS(IS(ibv_query_qp(NULL, &attr, 0, &init), EINVAL));
	LOGS(IS(ibv_query_qp(side.qp, NULL, 0, &init), EINVAL));
	LOGS(IS(ibv_destroy_qp(NULL), EINVAL));
	IS(ibv_query_qp_data_in_order(NULL, IBV_WR_RDMA_WRITE, 0), 0);
	LOGS(IS(ibv_set_ece(NULL, &ece), EINVAL));
	LOGS(IS(ibv_query_ece(NULL, &ece), EINVAL));
	LOGS(IS(ibv_attach_mcast(NULL, &gid, 0), EINVAL));
	LOGS(IS(ibv_detach_mcast(NULL, &gid, 0), EINVAL));

	LOGS(REFUSED(ibv_create_ah(NULL, &path), EINVAL));
	LOGS(REFUSED(ibv_create_ah(side.pd, NULL), EINVAL));
	LOGS(REFUSED(ibv_create_ah_from_wc(NULL, &wc, NULL, 1), EINVAL));
	LOGS(REFUSED(ibv_create_ah_from_wc(side.pd, NULL, NULL, 1), EINVAL));
	LOGS(CHECK(ibv_init_ah_from_wc(NULL, 1, &wc, NULL, &path) != 0));
	LOGS(CHECK(ibv_init_ah_from_wc(context, 1, NULL, NULL, &path) != 0));
	LOGS(CHECK(ibv_init_ah_from_wc(context, 1, &wc, NULL, NULL) != 0));
	LOGS(IS(ibv_destroy_ah(NULL), EINVAL));
	LOGS(CHECK(ibv_resolve_eth_l2_from_gid(NULL, &path, mac, &vid) != 0));
	LOGS(CHECK(ibv_resolve_eth_l2_from_gid(context, NULL, mac, &vid) != 0));
}

/* Context operations with null pointers, which a program may pass through the inline functions. */
static void null_arguments_of_operations(void)
{
	struct ibv_recv_wr *bad_recv = NULL;
	struct ibv_send_wr *bad = NULL;
	IS(ibv_post_send(side.qp, NULL, &bad), 0);
	IS(ibv_post_recv(side.qp, NULL, &bad_recv), 0);
	IS(ibv_poll_cq(side.cq, 0, NULL), 0);
	CHECK(ibv_poll_cq(side.cq, -1, NULL) <= 0);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .num_sge = 1 };
	LOGS(IS(ibv_post_send(side.qp, &wr, &bad), EINVAL));
	CHECK(bad == &wr);
	wr.num_sge = -1;
	LOGS(IS(ibv_post_send(side.qp, &wr, &bad), EINVAL));
	wr = (struct ibv_send_wr){ .opcode = 99 };
	bad = NULL;
	LOGS(IS_ONE_OF(ibv_post_send(side.qp, &wr, &bad), EINVAL, EOPNOTSUPP));
	CHECK(bad == &wr);
	wr = (struct ibv_send_wr){ .opcode = IBV_WR_BIND_MW };
	LOGS(CHECK(ibv_post_send(side.qp, &wr, &bad) != 0));
	wr = (struct ibv_send_wr){ .opcode = IBV_WR_TSO, .tso.hdr_sz = 1 };
	LOGS(CHECK(ibv_post_send(side.qp, &wr, &bad) != 0));
	struct ibv_recv_wr recv = { .num_sge = 1 };
	LOGS(IS(ibv_post_recv(side.qp, &recv, &bad_recv), EINVAL));
	CHECK(bad_recv == &recv);
	recv.num_sge = -1;
	LOGS(IS(ibv_post_recv(side.qp, &recv, &bad_recv), EINVAL));

	struct ibv_wq_init_attr wq = { 0 };
	struct ibv_rwq_ind_table_init_attr table = { 0 };
	struct ibv_counters_init_attr counters = { 0 };
	struct ibv_alloc_dm_attr dm = { 0 };
	struct ibv_xrcd_init_attr xrcd = { 0 };
	struct ibv_td_init_attr td = { .comp_mask = 1 };
	struct ibv_parent_domain_init_attr parent = { 0 };
	struct ibv_flow_attr flow = { 0 };
	struct ibv_flow_action_esp_attr esp = { 0 };
	struct ibv_qp_init_attr_ex qp = { 0 };
	struct ibv_srq_init_attr_ex srq = { .comp_mask = IBV_SRQ_INIT_ATTR_TYPE, .srq_type = IBV_SRQT_XRC };
	struct ibv_qp_open_attr open = { 0 };
	struct ibv_qp_rate_limit_attr rate = { 0 };
	struct ibv_values_ex values = { .comp_mask = 1u << 20 };
	LOGS(CHECK(ibv_create_wq(context, &wq) == NULL));
	LOGS(CHECK(ibv_create_rwq_ind_table(context, &table) == NULL));
	LOGS(CHECK(ibv_create_counters(context, &counters) == NULL));
	LOGS(CHECK(ibv_alloc_dm(context, &dm) == NULL));
	LOGS(REFUSED(ibv_open_xrcd(context, &xrcd), EINVAL));
	LOGS(REFUSED(ibv_alloc_td(context, &td), EINVAL));
	LOGS(REFUSED(ibv_alloc_parent_domain(context, &parent), EINVAL));
	parent = (struct ibv_parent_domain_init_attr){ .pd = side.pd, .comp_mask = 1u << 20 };
	LOGS(REFUSED(ibv_alloc_parent_domain(context, &parent), EINVAL));
	LOGS(CHECK(ibv_create_flow(side.qp, &flow) == NULL));
	LOGS(CHECK(ibv_create_flow_action_esp(context, &esp) == NULL));
	LOGS(CHECK(ibv_create_qp_ex(context, &qp) == NULL));
	qp = (struct ibv_qp_init_attr_ex){ .comp_mask = IBV_QP_INIT_ATTR_PD | 1u << 20, .pd = side.pd,
					   .send_cq = side.cq, .recv_cq = side.cq, .qp_type = IBV_QPT_RC };
	LOGS(CHECK(ibv_create_qp_ex(context, &qp) == NULL));
	IS_ONE_OF(errno, EINVAL, EOPNOTSUPP);
	qp.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	qp.create_flags = 1u << 30;
	LOGS(CHECK(ibv_create_qp_ex(context, &qp) == NULL));
	IS_ONE_OF(errno, EINVAL, EOPNOTSUPP);
	LOGS(CHECK(ibv_create_srq_ex(context, &srq) == NULL));
	LOGS(CHECK(ibv_open_qp(context, &open) == NULL));
	LOGS(CHECK(ibv_modify_qp_rate_limit(side.qp, &rate) != 0));
	CHECK(ibv_query_rt_values_ex(context, &values) != 0 || values.comp_mask == 0);
}

static void values_out_of_range(void)
{
	LOGS(REFUSED(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL));
	LOGS(REFUSED(ibv_create_cq(context, -5, NULL, NULL, 0), EINVAL));
	LOGS(REFUSED(ibv_create_cq(context, 16, NULL, NULL, -1), EINVAL));
	LOGS(REFUSED(ibv_create_cq(context, 16, NULL, NULL, 1000), EINVAL));
	LOGS(REFUSED(ibv_create_cq(context, 0x7fffffff, NULL, NULL, 0), EINVAL));
	LOGS(IS(ibv_resize_cq(side.cq, 0), EINVAL));
	LOGS(IS(ibv_resize_cq(side.cq, -1), EINVAL));
	LOGS(IS(ibv_resize_cq(side.cq, 0x7fffffff), EINVAL));
	IS(ibv_resize_cq(side.cq, 256), 0);
	CHECK(side.cq->cqe >= 256);

	struct ibv_qp_init_attr init = qp_attr(side.cq, IBV_QPT_RC);
	init.qp_type = 0;
	LOGS(CHECK(ibv_create_qp(side.pd, &init) == NULL));
	IS_ONE_OF(errno, EINVAL, EOPNOTSUPP);
	init = qp_attr(side.cq, 77);
	LOGS(CHECK(ibv_create_qp(side.pd, &init) == NULL));
	IS_ONE_OF(errno, EINVAL, EOPNOTSUPP);
	init = qp_attr(NULL, IBV_QPT_RC);
	LOGS(REFUSED(ibv_create_qp(side.pd, &init), EINVAL));
	init = qp_attr(side.cq, IBV_QPT_RC);
	init.cap.max_send_wr = 0x7fffffff;
	LOGS(CHECK(ibv_create_qp(side.pd, &init) == NULL));
	IS_ONE_OF(errno, EINVAL, ENOMEM);
	init = qp_attr(side.cq, IBV_QPT_RC);
	init.cap.max_send_sge = 100000;
	LOGS(REFUSED(ibv_create_qp(side.pd, &init), EINVAL));
	init = qp_attr(side.cq, IBV_QPT_RC);
	init.cap.max_inline_data = 1 << 24;
	LOGS(REFUSED(ibv_create_qp(side.pd, &init), EINVAL));

	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	LOGS(IS(ibv_modify_qp(side.qp, &attr, IBV_QP_STATE), EINVAL));
	attr.qp_state = 99;
	LOGS(IS(ibv_modify_qp(side.qp, &attr, IBV_QP_STATE), EINVAL));
	attr.qp_state = IBV_QPS_INIT;
	LOGS(IS(ibv_modify_qp(side.qp, &attr, IBV_QP_STATE), EINVAL));
	LOGS(IS_ONE_OF(ibv_modify_qp(side.qp, &attr, 1 << 30), EINVAL, EOPNOTSUPP));
	attr.port_num = 9;
	LOGS(IS(ibv_modify_qp(side.qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS), EINVAL));
	IS(side.qp->state, IBV_QPS_RESET);

	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 0, .max_sge = 1 } };
	LOGS(REFUSED(ibv_create_srq(side.pd, &srq), EINVAL));
	srq.attr.max_wr = 0x7fffffff;
	LOGS(REFUSED(ibv_create_srq(side.pd, &srq), EINVAL));
	union ibv_gid gid = { .raw = { 1 } };
	LOGS(IS(ibv_attach_mcast(side.qp, &gid, 0), EINVAL));
	LOGS(IS(ibv_detach_mcast(side.qp, &gid, 0), EINVAL));
	LOGS(REFUSED(ibv_import_pd(context, 0x7fffffff), EOPNOTSUPP));
}

/* Symbols unknown to release 44, called only with null pointers. */
static void newer_symbols(void)
{
	static const char *const names[] = { "ibv_alloc_dmah", "ibv_dealloc_dmah", "ibv_reg_mr_ex", "ibv_dm_export_dmabuf_fd",
					     "ibv_query_port_speed", "ibv_alloc_buf", "ibv_free_buf", "ibv_reg_buf_mr" };
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		void *(*function)(void *, void *, void *, void *) = NULL;
		*(void **)&function = dlsym(RTLD_DEFAULT, names[i]);
		if (function)
			function(NULL, NULL, NULL, NULL);
		else
			fprintf(stderr, "refused.c: no symbol %s\n", names[i]);
	}
}

int main(int argc, char **argv)
{
	begin_log();
	context = open_device();
	for (int i = 0; i < rounds(argc, argv); i++) {
		side = make_side(context, IBV_QPT_RC, 4096);
		null_objects();
		values_out_of_range();
		to_init(side.qp);
		connect_qp(side.qp, side.qp->qp_num);
		null_arguments_of_operations();
		destroy_side(&side);
		newer_symbols();
	}
	IS(ibv_close_device(context), 0);
	every_refusal_has_a_cause();
	return 0;
}
