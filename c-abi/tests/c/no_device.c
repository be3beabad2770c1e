/* Functions that need no device: strings, rates, the list without devices, fork support, sysfs
 * files. Prints every result; rdma-core's library has to print the same. */
#include <dlfcn.h>
#include <infiniband/sa.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>

#include "test.h"

/* Declarations of marshall.h and driver.h, which Debian does not package. */
void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *to, struct ib_uverbs_ah_attr *from);
void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *to, struct ib_uverbs_qp_attr *from);
void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *to, struct ib_user_path_rec *from);
void ibv_copy_path_rec_to_kern(struct ib_user_path_rec *to, struct ibv_sa_path_rec *from);
const char *ibv_get_sysfs_path(void);
int ibv_read_sysfs_file(const char *directory, const char *file, char *text, size_t size);

static void strings(void)
{
	for (int i = -2; i < 64; i++) {
		printf("node_type %d %s\n", i, ibv_node_type_str(i));
		printf("port_state %d %s\n", i, ibv_port_state_str(i));
		/* Release 65 has names for events from 20 on. */
		if (i < 20)
			printf("event_type %d %s\n", i, ibv_event_type_str(i));
		printf("wc_status %d %s\n", i, ibv_wc_status_str(i));
		printf("rate_to_mult %d %d\n", i, ibv_rate_to_mult(i));
		printf("rate_to_mbps %d %d\n", i, ibv_rate_to_mbps(i));
		printf("mult_to_rate %d %d\n", i, mult_to_ibv_rate(i));
	}
	static const int mbps[] = { 0, 1, 2500, 5000, 7000, 10000, 14062, 14063, 20000, 25781, 30000, 40000,
				    60000, 80000, 100000, 103125, 112500, 120000, 168750, 200000, 206250,
				    300000, 309375, 400000, 600000, 800000, 1200000 };
	for (size_t i = 0; i < sizeof mbps / sizeof *mbps; i++)
		printf("mbps_to_rate %d %d\n", mbps[i], mbps_to_ibv_rate(mbps[i]));
	for (int i = 0; i < 256; i++)
		if (mult_to_ibv_rate(i) != IBV_RATE_MAX)
			printf("mult %d is a rate\n", i);
}

/* Fills memory with a pattern whose bytes all differ from their neighbours. */
static void pattern(void *memory, size_t size)
{
	for (size_t i = 0; i < size; i++)
		((uint8_t *)memory)[i] = (uint8_t)(i * 7 + 3);
}

static void print(const char *name, const void *memory, size_t size)
{
	printf("%s", name);
	for (size_t i = 0; i < size; i++)
		printf(" %02x", ((const uint8_t *)memory)[i]);
	printf("\n");
}

static void marshalling(void)
{
	struct ib_uverbs_ah_attr kern_ah;
	struct ibv_ah_attr ah = { 0 };
	pattern(&kern_ah, sizeof kern_ah);
	ibv_copy_ah_attr_from_kern(&ah, &kern_ah);
	print("ah", &ah, offsetof(struct ibv_ah_attr, port_num) + 1);
	struct ib_uverbs_qp_attr kern_qp;
	struct ibv_qp_attr qp = { 0 };
	pattern(&kern_qp, sizeof kern_qp);
	ibv_copy_qp_attr_from_kern(&qp, &kern_qp);
	printf("qp %u %u %u %u %x %x %x %x %x\n", qp.qp_state, qp.cur_qp_state, qp.path_mtu, qp.path_mig_state,
	       qp.qkey, qp.rq_psn, qp.sq_psn, qp.dest_qp_num, qp.qp_access_flags);
	print("qp cap", &qp.cap, sizeof qp.cap);
	print("qp rest", &qp.pkey_index, offsetof(struct ibv_qp_attr, alt_timeout) + 1 -
						 offsetof(struct ibv_qp_attr, pkey_index));
	struct ib_user_path_rec kern_path, back = { 0 };
	struct ibv_sa_path_rec path = { 0 };
	pattern(&kern_path, sizeof kern_path);
	ibv_copy_path_rec_from_kern(&path, &kern_path);
	print("path gids", &path, 32);
	printf("path %x %x %d %x %u %u %d %x %x %x %x %x %x %x %x\n", path.dlid, path.slid, path.raw_traffic,
	       path.flow_label, path.hop_limit, path.traffic_class, path.reversible, path.numb_path, path.pkey,
	       path.sl, path.mtu_selector, path.mtu, path.rate_selector, path.rate, path.packet_life_time);
	ibv_copy_path_rec_to_kern(&back, &path);
	print("path back", &back, 32);
}

static void lists(void)
{
	int count = -7;
	errno = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	printf("list %s count %d errno %d\n", list ? "some" : "null", count, errno);
	if (list) {
		for (int i = 0; list[i]; i++)
			printf("device %s\n", ibv_get_device_name(list[i]));
		ibv_free_device_list(list);
	}
	list = ibv_get_device_list(NULL);
	printf("list %s\n", list ? "some" : "null");
	if (list)
		ibv_free_device_list(list);
}

static void files(void)
{
	char text[64];
	char directory[] = "/tmp/verbs-c-XXXXXX", path[128];
	printf("sysfs %s\n", ibv_get_sysfs_path());
	CHECK(mkdtemp(directory) != NULL);
	static const char *const contents[] = { "", "\n", "one", "one\n", "one\n\n", "one\ntwo\n" };
	for (size_t i = 0; i < sizeof contents / sizeof *contents; i++) {
		snprintf(path, sizeof path, "%s/file", directory);
		FILE *file = fopen(path, "w");
		CHECK(file != NULL);
		fputs(contents[i], file);
		fclose(file);
		for (size_t size = 1; size < 12; size++) {
			memset(text, 'x', sizeof text);
			int length = ibv_read_sysfs_file(directory, "file", text, size);
			printf("file %zu size %zu: %d", i, size, length);
			print("", text, length < 0 ? 0 : (size_t)length + 1);
		}
	}
	errno = 0;
	printf("no file %d\n", ibv_read_sysfs_file(directory, "nope", text, sizeof text));
	unlink(path);
	rmdir(directory);
}

static void forks(void)
{
	printf("fork initialized %d\n", ibv_is_fork_initialized());
	printf("fork init %d\n", ibv_fork_init());
	printf("fork initialized %d\n", ibv_is_fork_initialized());
	printf("fork init %d\n", ibv_fork_init());
}

/* Every symbol that a program of release 44 can bind to, and its node. */
static void symbols(void)
{
	static const struct { const char *node, *name; } all[] = {
		{ "IBVERBS_1.0", "ibv_create_comp_channel" }, { "IBVERBS_1.0", "ibv_destroy_comp_channel" },
		{ "IBVERBS_1.0", "ibv_rate_to_mult" },        { "IBVERBS_1.0", "mult_to_ibv_rate" },
		{ "IBVERBS_1.0", "ibv_get_sysfs_path" },      { "IBVERBS_1.0", "ibv_read_sysfs_file" },
		{ "IBVERBS_1.1", "ibv_get_device_list" },     { "IBVERBS_1.1", "ibv_create_qp" },
		{ "IBVERBS_1.1", "ibv_register_driver" },     { "IBVERBS_1.5", "ibv_get_pkey_index" },
		{ "IBVERBS_1.6", "ibv_qp_to_qp_ex" },         { "IBVERBS_1.7", "ibv_reg_mr_iova" },
		{ "IBVERBS_1.8", "ibv_reg_mr_iova2" },        { "IBVERBS_1.9", "ibv_get_device_index" },
		{ "IBVERBS_1.10", "ibv_import_device" },      { "IBVERBS_1.10", "ibv_query_ece" },
		{ "IBVERBS_1.11", "_ibv_query_gid_ex" },      { "IBVERBS_1.11", "_ibv_query_gid_table" },
		{ "IBVERBS_1.12", "ibv_reg_dmabuf_mr" },      { "IBVERBS_1.13", "ibv_import_dm" },
		{ "IBVERBS_1.13", "ibv_is_fork_initialized" }, { "IBVERBS_1.14", "ibv_query_qp_data_in_order" },
		{ "IBVERBS_1.1", "ibv_no_such_function" },    { "IBVERBS_1.0", "ibv_query_qp_data_in_order" },
	};
	void *library = dlopen("libibverbs.so.1", RTLD_NOW);
	CHECK(library != NULL);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		printf("symbol %s@%s %s\n", all[i].name, all[i].node,
		       dlvsym(library, all[i].name, all[i].node) ? "there" : "missing");
	dlclose(library);
}

int main(void)
{
	strings();
	marshalling();
	lists();
	files();
	forks();
	symbols();
	return 0;
}
