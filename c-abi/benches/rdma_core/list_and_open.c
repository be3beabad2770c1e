/* What `cargo xtask bench` compares listing and opening with: the same two verbs through rdma-core. */
#include <infiniband/verbs.h>
#include <stdio.h>

int main(void)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);

	if (!list || !count)
		return 1;
	struct ibv_context *context = ibv_open_device(list[0]);
	if (!context)
		return 1;
	printf("%s\n", ibv_get_device_name(list[0]));
	ibv_free_device_list(list);
	return ibv_close_device(context) ? 1 : 0;
}
