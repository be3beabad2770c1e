/* The environment: a program with its caller's rights gets the device that VERBS_SOFT requests; a
 * set-user-ID program does not. One call fails, which VERBS_LOG_LEVEL would log. Prints whether the
 * kernel marks the program. */
#include "connections.h"

#include <sys/auxv.h>

static int soft_devices(void)
{
	int number = 0;
	struct ibv_device **list = ibv_get_device_list(NULL);
	if (list == NULL) {
		/* Neither the kernel nor the environment provides a device. */
		IS(errno, ENOSYS);
		return 0;
	}
	for (int i = 0; list[i]; i++)
		number += !strncmp(ibv_get_device_name(list[i]), "soft", 4);
	ibv_free_device_list(list);
	return number;
}

/* Binds an id to an address that no machine has. */
static void fail_once(void)
{
	struct sockaddr_in nowhere = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0xcb007101) };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	if (channel == NULL)
		return;
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0) {
		IS(rdma_bind_addr(id, (struct sockaddr *)&nowhere), -1);
		IS(rdma_destroy_id(id), 0);
	}
	rdma_destroy_event_channel(channel);
}

int main(void)
{
	bool is_privileged = getauxval(AT_SECURE) != 0;
	fail_once();
	IS(soft_devices(), is_privileged ? 0 : 1);
	puts(is_privileged ? "set-user-ID" : "plain");
	return 0;
}
