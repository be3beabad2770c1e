/* ibv_wr_...: batches, and the fate of requests when a batch is aborted or has an error. */
#include "test.h"

static struct side one, other;
static struct ibv_qp_ex *ex;

static void write_of(uint64_t wr_id)
{
	struct ibv_sge sge = sge_of(&one, 0, 8);
	ex->wr_id = wr_id;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(ex, other.mr->rkey, (uintptr_t)other.memory + 64);
	ibv_wr_set_sge(ex, sge.lkey, sge.addr, sge.length);
}

static void no_completion(void)
{
	struct ibv_wc wc;
	IS(ibv_poll_cq(one.cq, 1, &wc), 0);
}

static void a_batch_arrives_in_order(void)
{
	ibv_wr_start(ex);
	for (uint64_t i = 0; i < 16; i++)
		write_of(i);
	IS(ibv_wr_complete(ex), 0);
	for (uint64_t i = 0; i < 16; i++)
		CHECK(success_of(one.cq).wr_id == i);
}

static void an_empty_batch_posts_nothing(void)
{
	ibv_wr_start(ex);
	IS(ibv_wr_complete(ex), 0);
	ibv_wr_start(ex);
	ibv_wr_abort(ex);
	no_completion();
}

static void an_aborted_batch_posts_nothing(void)
{
	memset(other.memory, 0, 128);
	memset(one.memory, 0x77, 128);
	for (int length = 1; length <= 32; length++) {
		ibv_wr_start(ex);
		for (int i = 0; i < length; i++)
			write_of(1000);
		ibv_wr_abort(ex);
	}
	/* The queue has as much room as before. */
	ibv_wr_start(ex);
	for (uint64_t i = 0; i < 32; i++)
		write_of(i);
	IS(ibv_wr_complete(ex), 0);
	for (uint64_t i = 0; i < 32; i++)
		CHECK(success_of(one.cq).wr_id == i);
	no_completion();
}

static void a_batch_with_an_error_posts_nothing(void)
{
	struct ibv_sge sges[40];
	for (int i = 0; i < 40; i++)
		sges[i] = sge_of(&one, 0, 8);
	memset(other.memory, 0, 128);
	memset(one.memory, 0x99, 128);

	ibv_wr_start(ex);
	write_of(1);
	ex->wr_id = 2;
	ibv_wr_rdma_write(ex, other.mr->rkey, (uintptr_t)other.memory + 64);
	ibv_wr_set_sge_list(ex, 40, sges);
	write_of(3);
	IS_ONE_OF(ibv_wr_complete(ex), EINVAL, ENOMEM);

	ibv_wr_start(ex);
	write_of(1);
	ex->wr_id = 2;
	ibv_wr_rdma_write(ex, other.mr->rkey, (uintptr_t)other.memory + 64);
	ibv_wr_set_inline_data(ex, one.memory, 4096);
	IS_ONE_OF(ibv_wr_complete(ex), EINVAL, ENOMEM);

	/* More than the queue holds. */
	ibv_wr_start(ex);
	for (uint64_t i = 0; i < 4096; i++)
		write_of(i);
	IS(ibv_wr_complete(ex), ENOMEM);
	no_completion();
	CHECK(other.memory[64] == 0);
	a_batch_arrives_in_order();
	CHECK(other.memory[64] == 0x99);
}

static void inline_lists_are_gathered(void)
{
	uint8_t parts[3][20];
	struct ibv_data_buf list[3];
	for (int i = 0; i < 3; i++) {
		memset(parts[i], i + 1, sizeof parts[i]);
		list[i] = (struct ibv_data_buf){ parts[i], sizeof parts[i] };
	}
	ibv_wr_start(ex);
	ex->wr_id = 9;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(ex, other.mr->rkey, (uintptr_t)other.memory);
	ibv_wr_set_inline_data_list(ex, 3, list);
	/* The data was copied. */
	memset(parts, 0xff, sizeof parts);
	IS(ibv_wr_complete(ex), 0);
	CHECK(success_of(one.cq).wr_id == 9);
	for (int i = 0; i < 60; i++)
		IS(other.memory[i], i / 20 + 1);
}

static void the_functions_of_operations_that_were_not_asked_for(void)
{
	/* C leaves functions null that the device lacks; a program may use the others or not. */
	struct ibv_qp *qp = create_qp_ex(one.pd, one.cq, IBV_QPT_RC, IBV_QP_EX_WITH_SEND);
	CHECK(qp != NULL && ibv_qp_to_qp_ex(qp) != NULL);
	IS(ibv_destroy_qp(qp), 0);
	qp = create_qp_ex(one.pd, one.cq, IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_WRITE);
	CHECK(qp == NULL);
	errno = 0;
	qp = create_qp_ex(one.pd, one.cq, IBV_QPT_RC, 1ull << 60);
	CHECK(qp == NULL);
	IS_ONE_OF(errno, EOPNOTSUPP, EINVAL);
}

int main(int argc, char **argv)
{
	struct ibv_context *context = open_device();
	one = make_side(context, 0, 8192);
	other = make_side(context, IBV_QPT_RC, 8192);
	one.qp = create_qp_ex(one.pd, one.cq, IBV_QPT_RC, WR_OPS);
	CHECK(one.qp != NULL);
	ex = ibv_qp_to_qp_ex(one.qp);
	CHECK(ex != NULL && &ex->qp_base == one.qp);
	connect_pair(one.qp, other.qp);
	for (int i = 0; i < rounds(argc, argv); i++) {
		a_batch_arrives_in_order();
		an_empty_batch_posts_nothing();
		an_aborted_batch_posts_nothing();
		a_batch_with_an_error_posts_nothing();
		inline_lists_are_gathered();
		the_functions_of_operations_that_were_not_asked_for();
	}
	destroy_side(&one);
	destroy_side(&other);
	IS(ibv_close_device(context), 0);
	return 0;
}
