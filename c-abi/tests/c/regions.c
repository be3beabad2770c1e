/* Memory regions: custom addresses, changes, access rights, windows, null regions. */
#include "test.h"

static struct ibv_context *context;
static struct side one, other;

static enum ibv_wc_status write_to(uint64_t remote_addr, uint32_t rkey, size_t length)
{
	struct ibv_sge sge = sge_of(&one, 0, length);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.rdma.remote_addr = remote_addr;
	wr.wr.rdma.rkey = rkey;
	IS(ibv_post_send(one.qp, &wr, &bad), 0);
	enum ibv_wc_status status = completion_of(one.cq).status;
	if (status != IBV_WC_SUCCESS) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
		IS(ibv_modify_qp(one.qp, &attr, IBV_QP_STATE), 0);
		IS(ibv_modify_qp(other.qp, &attr, IBV_QP_STATE), 0);
		connect_pair(one.qp, other.qp);
	}
	return status;
}

static void a_region_has_the_address_that_was_asked_for(void)
{
	uint64_t iova = 0x123450000000;
	struct ibv_mr *mr = ibv_reg_mr_iova(other.pd, other.memory + 64, 128, iova, ALL_ACCESS);
	CHECK(mr != NULL && mr->addr == other.memory + 64 && mr->length == 128);
	memset(one.memory, 0x31, 64);
	memset(other.memory, 0, 256);
	IS(write_to(iova + 16, mr->rkey, 8), IBV_WC_SUCCESS);
	CHECK(other.memory[80] == 0x31 && other.memory[79] == 0 && other.memory[88] == 0);
	IS(write_to((uintptr_t)other.memory + 80, mr->rkey, 8), IBV_WC_REM_ACCESS_ERR);
	uint32_t rkey = mr->rkey;
	IS(ibv_dereg_mr(mr), 0);
	/* The key is invalid now. */
	IS(write_to(iova + 16, rkey, 8), IBV_WC_REM_ACCESS_ERR);
}

static void rights_are_checked(void)
{
	REFUSED(ibv_reg_mr(other.pd, other.memory, 64, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	REFUSED(ibv_reg_mr(other.pd, other.memory, 64, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	CHECK(ibv_reg_mr(other.pd, other.memory, 64, 1 << 15) == NULL);
	IS_ONE_OF(errno, EINVAL, EOPNOTSUPP);
	/* Optional rights are dropped if the device does not support them. */
	struct ibv_mr *mr = ibv_reg_mr(other.pd, other.memory, 64, ALL_ACCESS | IBV_ACCESS_RELAXED_ORDERING | 1 << 25);
	CHECK(mr != NULL);
	IS(ibv_dereg_mr(mr), 0);
	mr = ibv_reg_mr(other.pd, other.memory, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(mr != NULL);
	IS(write_to((uintptr_t)other.memory, mr->rkey, 8), IBV_WC_REM_ACCESS_ERR);
	IS(ibv_dereg_mr(mr), 0);
}

static void a_region_changes(void)
{
	uint8_t *fresh = calloc(1, 4096);
	struct ibv_mr *mr = ibv_reg_mr(other.pd, other.memory, 64, ALL_ACCESS);
	CHECK(mr != NULL);
	IS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, fresh, 4096, 0), 0);
	CHECK(mr->addr == fresh && mr->length == 4096);
	memset(one.memory, 0x42, 8);
	IS(write_to((uintptr_t)fresh + 4088, mr->rkey, 8), IBV_WC_SUCCESS);
	CHECK(fresh[4095] == 0x42);
	IS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE), 0);
	IS(write_to((uintptr_t)fresh, mr->rkey, 8), IBV_WC_REM_ACCESS_ERR);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	IS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS, pd, NULL, 0, ALL_ACCESS), 0);
	CHECK(mr->pd == pd);
	IS(write_to((uintptr_t)fresh, mr->rkey, 8), IBV_WC_REM_ACCESS_ERR);
	/* Wrong arguments, in the order in which C checks them. */
	errno = 0;
	IS(ibv_rereg_mr(mr, 1 << 20, pd, fresh, 64, 0), IBV_REREG_MR_ERR_INPUT);
	IS(errno, EINVAL);
	IS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 64, 0), IBV_REREG_MR_ERR_INPUT);
	IS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, fresh, 0, 0), IBV_REREG_MR_ERR_INPUT);
	IS(ibv_dereg_mr(mr), 0);
	IS(ibv_dealloc_pd(pd), 0);
	free(fresh);
}

static void a_window_gives_and_takes_access(void)
{
	struct ibv_mr *mr = ibv_reg_mr(other.pd, other.memory, 4096, ALL_ACCESS | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(other.pd, IBV_MW_TYPE_1);
	CHECK(mr != NULL && mw != NULL && mw->type == IBV_MW_TYPE_1);
	uint32_t first = mw->rkey;
	struct ibv_mw_bind bind = { .wr_id = 77, .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = { .mr = mr, .addr = (uintptr_t)other.memory + 256, .length = 64,
						   .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } };
	IS(ibv_bind_mw(other.qp, mw, &bind), 0);
	struct ibv_wc wc = success_of(other.cq);
	CHECK(wc.wr_id == 77 && wc.opcode == IBV_WC_BIND_MW);
	CHECK(mw->rkey != first && mw->rkey >> 8 == first >> 8);
	memset(one.memory, 0x53, 8);
	IS(write_to((uintptr_t)other.memory + 256, mw->rkey, 8), IBV_WC_SUCCESS);
	CHECK(other.memory[256] == 0x53);
	IS(write_to((uintptr_t)other.memory + 320, mw->rkey, 8), IBV_WC_REM_ACCESS_ERR);
	IS(ibv_dereg_mr(mr), EBUSY);
	IS(ibv_dealloc_mw(mw), 0);

	mw = ibv_alloc_mw(other.pd, IBV_MW_TYPE_2);
	CHECK(mw != NULL);
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
				  .bind_mw = { .mw = mw, .rkey = ibv_inc_rkey(mw->rkey), .bind_info = bind.bind_info } }, *bad;
	IS(ibv_post_send(other.qp, &wr, &bad), 0);
	IS(success_of(other.cq).opcode, IBV_WC_BIND_MW);
	uint32_t rkey = wr.bind_mw.rkey;
	IS(write_to((uintptr_t)other.memory + 256, rkey, 8), IBV_WC_SUCCESS);
	wr = (struct ibv_send_wr){ .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = rkey };
	IS(ibv_post_send(other.qp, &wr, &bad), 0);
	IS(success_of(other.cq).opcode, IBV_WC_LOCAL_INV);
	IS(write_to((uintptr_t)other.memory + 256, rkey, 8), IBV_WC_REM_ACCESS_ERR);
	IS(ibv_dealloc_mw(mw), 0);
	IS(ibv_dereg_mr(mr), 0);
	REFUSED(ibv_alloc_mw(other.pd, 9), EINVAL);
}

static void other_kinds(void)
{
	/* A null region does not keep its domain in use, and peers may use its local key as
	 * well. */
	struct ibv_pd *alone = ibv_alloc_pd(other.pd->context);
	CHECK(alone != NULL);
	struct ibv_mr *mr = ibv_alloc_null_mr(alone);
	IS(ibv_dealloc_pd(alone), 0);
	if (mr) {
		IS(mr->rkey, 0);
		IS(write_to(0x1234, mr->lkey, 8), IBV_WC_SUCCESS);
		IS(ibv_dereg_mr(mr), 0);
	} else {
		IS(errno, EOPNOTSUPP);
	}
	/* Only regions with on-demand paging have their pages prefetched. */
	struct ibv_sge sge = sge_of(&other, 0, 64);
	IS_ONE_OF(ibv_advise_mr(other.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EINVAL, EOPNOTSUPP);
	CHECK(ibv_advise_mr(other.pd, 99, 0, &sge, 1) != 0);
	mr = ibv_reg_mr(other.pd, other.memory, 4096, ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
	if (mr) {
		sge.lkey = mr->lkey;
		IS(ibv_advise_mr(other.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), 0);
		IS(ibv_advise_mr(other.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1), 0);
		memset(one.memory, 0x64, 8);
		IS(write_to((uintptr_t)other.memory + 8, mr->rkey, 8), IBV_WC_SUCCESS);
		CHECK(other.memory[15] == 0x64);
		IS(ibv_dereg_mr(mr), 0);
	} else {
		IS_ONE_OF(errno, EOPNOTSUPP, EINVAL);
	}
	CHECK(ibv_reg_dmabuf_mr(other.pd, 0, 4096, 0, -1, ALL_ACCESS) == NULL);
	CHECK(errno == EBADF || errno == EOPNOTSUPP || errno == EINVAL);
	mr = ibv_reg_mr(other.pd, NULL, 0, IBV_ACCESS_LOCAL_WRITE);
	if (mr)
		IS(ibv_dereg_mr(mr), 0);
}

int main(int argc, char **argv)
{
	context = open_device();
	one = make_side(context, IBV_QPT_RC, 4096);
	other = make_side(context, IBV_QPT_RC, 4096);
	connect_pair(one.qp, other.qp);
	for (int i = 0; i < rounds(argc, argv); i++) {
		a_region_has_the_address_that_was_asked_for();
		rights_are_checked();
		a_region_changes();
		a_window_gives_and_takes_access();
		other_kinds();
	}
	destroy_side(&one);
	destroy_side(&other);
	IS(ibv_close_device(context), 0);
	return 0;
}
