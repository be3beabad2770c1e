/* C libraries pass an object's public handle and context to the kernel: a program that changes one
 * of them gets an error, and the object stays intact. */
#include "test.h"

/* Ends the program unless a call fails while the handle has another value. */
#define FAILS_WITH_ANOTHER_HANDLE(object, call)                                                    \
	do {                                                                                       \
		(object)->handle += 12345;                                                         \
		int result_ = (call);                                                              \
		(object)->handle -= 12345;                                                         \
		if (result_ != ENOENT && result_ != EINVAL) {                                      \
			fprintf(stderr, "%s:%d: %s with another handle is %d\n", __FILE__, __LINE__, #call, result_); \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#define IS_NULL_WITH_ANOTHER_HANDLE(object, call)                                                  \
	do {                                                                                       \
		(object)->handle += 12345;                                                         \
		errno = 0;                                                                         \
		void *result_ = (call);                                                            \
		int set_ = errno;                                                                  \
		(object)->handle -= 12345;                                                         \
		if (result_ || (set_ != ENOENT && set_ != EINVAL)) {                               \
			fprintf(stderr, "%s:%d: %s with another handle sets %d\n", __FILE__, __LINE__, #call, set_); \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

/* Ends the program unless a call finds no object while the object has another context. */
#define NOT_FOUND_IN(other, own, object, call)                                                     \
	do {                                                                                       \
		(object)->context = (other);                                                       \
		int result_ = (call);                                                              \
		(object)->context = (own);                                                         \
		if (result_ != ENOENT) {                                                           \
			fprintf(stderr, "%s:%d: %s in another context is %d\n", __FILE__, __LINE__, #call, result_); \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

/* Objects belong to the context that created them. */
static void objects_of_another_context_are_not_found(struct side *side, struct ibv_srq *srq,
						     struct ibv_mw *mw, struct ibv_ah *ah)
{
	struct ibv_context *own = side->pd->context;
	struct ibv_context *other = ibv_open_device(own->device);
	CHECK(other != NULL);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	NOT_FOUND_IN(other, own, side->pd, ibv_dealloc_pd(side->pd));
	NOT_FOUND_IN(other, own, side->cq, ibv_destroy_cq(side->cq));
	NOT_FOUND_IN(other, own, side->qp, ibv_modify_qp(side->qp, &attr, IBV_QP_STATE));
	NOT_FOUND_IN(other, own, side->qp, ibv_destroy_qp(side->qp));
	NOT_FOUND_IN(other, own, side->mr, ibv_dereg_mr(side->mr));
	NOT_FOUND_IN(other, own, srq, ibv_destroy_srq(srq));
	NOT_FOUND_IN(other, own, mw, ibv_dealloc_mw(mw));
	NOT_FOUND_IN(other, own, ah, ibv_destroy_ah(ah));
	IS(ibv_close_device(other), 0);
}

int main(int argc, char **argv)
{
	struct ibv_context *context = open_device();
	for (int i = 0; i < rounds(argc, argv); i++) {
		struct side side = make_side(context, IBV_QPT_RC, 4096);
		struct ibv_qp_init_attr init = qp_attr(side.cq, IBV_QPT_RC);
		struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 8, .max_sge = 1 } };
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
		struct ibv_srq *srq = ibv_create_srq(side.pd, &srq_init);
		CHECK(srq != NULL);
		struct ibv_mw *mw = ibv_alloc_mw(side.pd, IBV_MW_TYPE_1);
		CHECK(mw != NULL);
		struct ibv_ah_attr path = own_path(context);
		struct ibv_ah *ah = ibv_create_ah(side.pd, &path);
		CHECK(ah != NULL);

		IS_NULL_WITH_ANOTHER_HANDLE(side.pd, ibv_create_qp(side.pd, &init));
		IS_NULL_WITH_ANOTHER_HANDLE(side.pd, ibv_create_srq(side.pd, &srq_init));
		IS_NULL_WITH_ANOTHER_HANDLE(side.pd, ibv_reg_mr(side.pd, side.memory, 16, 0));
		IS_NULL_WITH_ANOTHER_HANDLE(side.pd, ibv_alloc_mw(side.pd, IBV_MW_TYPE_1));
		IS_NULL_WITH_ANOTHER_HANDLE(side.cq, ibv_create_qp(side.pd, &init));
		init.srq = srq;
		IS_NULL_WITH_ANOTHER_HANDLE(srq, ibv_create_qp(side.pd, &init));

		FAILS_WITH_ANOTHER_HANDLE(side.qp, ibv_modify_qp(side.qp, &attr, IBV_QP_STATE));
		FAILS_WITH_ANOTHER_HANDLE(side.qp, ibv_query_qp(side.qp, &attr, IBV_QP_STATE, &init));
		FAILS_WITH_ANOTHER_HANDLE(side.qp, ibv_destroy_qp(side.qp));
		FAILS_WITH_ANOTHER_HANDLE(side.cq, ibv_resize_cq(side.cq, 300));
		FAILS_WITH_ANOTHER_HANDLE(side.cq, ibv_req_notify_cq(side.cq, 0));
		FAILS_WITH_ANOTHER_HANDLE(side.cq, ibv_destroy_cq(side.cq));
		FAILS_WITH_ANOTHER_HANDLE(srq, ibv_query_srq(srq, &srq_init.attr));
		FAILS_WITH_ANOTHER_HANDLE(srq, ibv_modify_srq(srq, &srq_init.attr, IBV_SRQ_LIMIT));
		FAILS_WITH_ANOTHER_HANDLE(srq, ibv_destroy_srq(srq));
		FAILS_WITH_ANOTHER_HANDLE(side.mr, ibv_dereg_mr(side.mr));
		FAILS_WITH_ANOTHER_HANDLE(mw, ibv_dealloc_mw(mw));
		FAILS_WITH_ANOTHER_HANDLE(ah, ibv_destroy_ah(ah));
		FAILS_WITH_ANOTHER_HANDLE(side.pd, ibv_dealloc_pd(side.pd));
		objects_of_another_context_are_not_found(&side, srq, mw, ah);

		/* All objects are unchanged. */
		to_init(side.qp);
		connect_qp(side.qp, side.qp->qp_num);
		IS(ibv_destroy_ah(ah), 0);
		IS(ibv_dealloc_mw(mw), 0);
		IS(ibv_destroy_srq(srq), 0);
		destroy_side(&side);
	}
	IS(ibv_close_device(context), 0);
	return 0;
}
