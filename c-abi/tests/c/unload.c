/* The library is repeatedly loaded and unloaded, with devices open in between, as in plugins of UCX
 * and NCCL. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "unload.c:%d: not true: %s\n", __LINE__, #condition);      \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static void *library;

static void *symbol(const char *name, const char *node)
{
	void *found = dlvsym(library, name, node);
	if (!found) {
		fprintf(stderr, "unload.c: no %s@%s\n", name, node);
		exit(1);
	}
	return found;
}

#define FUNCTION(name) __typeof__(name) *name##_ = (__typeof__(name) *)symbol(#name, "IBVERBS_1.1")

static void use(void)
{
	FUNCTION(ibv_get_device_list);
	FUNCTION(ibv_free_device_list);
	FUNCTION(ibv_open_device);
	FUNCTION(ibv_close_device);
	FUNCTION(ibv_alloc_pd);
	FUNCTION(ibv_dealloc_pd);
	FUNCTION(ibv_create_cq);
	FUNCTION(ibv_destroy_cq);
	struct ibv_device **list = ibv_get_device_list_(NULL);
	CHECK(list && list[0]);
	struct ibv_context *context = ibv_open_device_(list[0]);
	CHECK(context);
	ibv_free_device_list_(list);
	struct ibv_pd *pd = ibv_alloc_pd_(context);
	struct ibv_cq *cq = ibv_create_cq_(context, 16, NULL, NULL, 0);
	CHECK(pd && cq);
	struct ibv_wc wc;
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	CHECK(ibv_destroy_cq_(cq) == 0);
	CHECK(ibv_dealloc_pd_(pd) == 0);
	CHECK(ibv_close_device_(context) == 0);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 1;
	for (int i = 0; i < rounds; i++) {
		library = dlopen("libibverbs.so.1", i % 2 ? RTLD_NOW : RTLD_LAZY | RTLD_LOCAL);
		CHECK(library);
		void *again = dlopen("libibverbs.so.1", RTLD_NOW);
		CHECK(again == library);
		use();
		CHECK(dlclose(again) == 0);
		use();
		CHECK(dlclose(library) == 0);
	}
	return 0;
}
