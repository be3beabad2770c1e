/* The main thread ends, and another one goes on. The kernel then has no memory under the process's
 * number, so the library must access checked memory under a thread's. */
#include <sys/mman.h>
#include <sys/wait.h>

#include "test.h"

enum { SIZE = 65536 };

static pthread_t main_thread;
static struct side side;
static struct ibv_mr *early;
static char table[8192] = { 1 };

/* Writes to an address and returns the completion's status. */
static enum ibv_wc_status write_to(void *address, uint32_t rkey)
{
	struct ibv_sge sge = sge_of(&side, 0, 64);
	struct ibv_send_wr *bad, wr = {
		.wr_id = 7,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)address, rkey },
	};
	IS(ibv_post_send(side.qp, &wr, &bad), 0);
	return completion_of(side.cq).status;
}

static void prepare(void)
{
	side = make_side(open_device(), IBV_QPT_RC, 4096);
	to_init(side.qp);
	connect_qp(side.qp, side.qp->qp_num);
}

static void *rest(void *before)
{
	char name[] = "/tmp/verbs-main-thread-XXXXXX";
	int file = mkstemp(name);
	IS(pthread_join(main_thread, NULL), 0);
	if (before)
		IS(write_to(table, early->rkey), IBV_WC_SUCCESS);
	else
		prepare();
	struct ibv_mr *mr = ibv_reg_mr(side.pd, table, sizeof(table), ALL_ACCESS);
	CHECK(mr != NULL);
	IS(write_to(table, mr->rkey), IBV_WC_SUCCESS);
	CHECK(file >= 0 && unlink(name) == 0 && ftruncate(file, SIZE) == 0);
	char *mapped = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	CHECK(mapped != MAP_FAILED);
	mr = ibv_reg_mr(side.pd, mapped, SIZE, ALL_ACCESS);
	CHECK(mr != NULL);
	IS(write_to(mapped, mr->rkey), IBV_WC_SUCCESS);
	/* A peer's write to a file that was cut is an error, and not the end of the process. */
	IS(ftruncate(file, 0), 0);
	CHECK(write_to(mapped, mr->rkey) != IBV_WC_SUCCESS);
	exit(0);
}

int main(void)
{
	pthread_t thread;
	main_thread = pthread_self();
	if (fork() == 0) {
		/* The device is opened behind the end of the main thread. */
		IS(pthread_create(&thread, NULL, rest, NULL), 0);
		pthread_exit(NULL);
	}
	int status;
	CHECK(wait(&status) > 0);
	IS(status, 0);
	prepare();
	early = ibv_reg_mr(side.pd, table, sizeof(table), ALL_ACCESS);
	CHECK(early != NULL);
	IS(pthread_create(&thread, NULL, rest, &early), 0);
	pthread_exit(NULL);
}
