"""Programs on pyverbs that run into faults of the ConnectX model and print their observations.

Usage: faults.py PROGRAM DEVICE PORT-KIND GID-INDEX

    commands     the errno for each command status: `STATUS ERRNO` lines
    completions  the status for each syndrome: `SIDE SYNDROME STATUS VENDOR NEXT STATE` lines of numbers
    held         a delayed event: `STEP yes|no` lines
    overrun      a completion queue that overflows: `event TYPE` lines
    fatal        the device fails: a `ready` line, then `event TYPE` lines
"""
import os
import select
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

program, device, port_kind, gid_index = sys.argv[1:]
gid_index = int(gid_index)


def tell(line):
    """Sends a line to the model and returns its answer."""
    with open('/dev/connectx', 'r+b', buffering=0) as port:
        port.write(line.encode() + b'\n')
        answer = b''
        while True:
            answer += port.read(4096)
            lines = answer.decode().split('\n')
            if answer.endswith(b'\n') and lines[-2].split(' ')[0] in ('ok', 'error', 'error:'):
                break
    if not lines[-2].startswith('ok'):
        sys.exit(f'the model answers {lines[-2]!r} to {line!r}')
    return lines[:-1]


class End:
    """A queue pair with a completion queue, and some memory."""

    def __init__(self, context, depth=8, entries=64, channel=None):
        self.pd = PD(context)
        self.cq = CQ(context, entries, None, channel)
        self.mr = MR(self.pd, 4096, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        cap = QPCap(max_send_wr=depth, max_recv_wr=depth)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap))

    def connect(self, context, peer):
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        attr.path_mtu = e.IBV_MTU_1024
        attr.dest_qp_num = peer.qp.qp_num
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
        lid = context.query_port(1).lid
        if port_kind == 'ib':
            attr.ah_attr = AHAttr(port_num=1, dlid=lid)
        else:
            route = GlobalRoute(dgid=context.query_gid(1, gid_index), sgid_index=gid_index)
            attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route, dlid=lid)
        self.qp.to_rts(attr)

    def sge(self):
        return SGE(self.mr.buf, 64, self.mr.lkey)

    def send(self, wr_id):
        self.qp.post_send(SendWR(wr_id=wr_id, opcode=e.IBV_WR_SEND, num_sge=1, sg=[self.sge()],
                                 send_flags=e.IBV_SEND_SIGNALED))

    def receive(self, wr_id):
        self.qp.post_recv(RecvWR(wr_id=wr_id, num_sge=1, sg=[self.sge()]))

    def poll(self):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            count, wcs = self.cq.poll()
            if count:
                return wcs[0]
        sys.exit('no completion within 30 s')


def pair(context, **shape):
    one, other = End(context, **shape), End(context, **shape)
    one.connect(context, other)
    other.connect(context, one)
    return one, other


def commands():
    context = Context(name=device)
    for status in [0x1, 0x2, 0x3, 0x4, 0x5, 0x6, 0x8, 0x9, 0xa, 0xf, 0x10, 0x30, 0x40, 0x50, 0x51]:
        tell(f'command opcode=ALLOC_PD status={status:#x} syndrome=0xabcd')
        try:
            PD(context)
            print(f'{status:#x} 0')
        except PyverbsRDMAError as error:
            print(f'{status:#x} {error.error_code}')
    # The fault is used up.
    PD(context)
    print('after 0')


def completions():
    context = Context(name=device)
    for syndrome in [0x01, 0x02, 0x04, 0x05, 0x06, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x22]:
        one, other = pair(context)
        tell(f'completion qpn={one.qp.qp_num:#x} syndrome={syndrome:#x} vendor=0x5a')
        other.receive(1)
        one.send(2)
        one.send(3)
        first, second = one.poll(), one.poll()
        state = one.qp.query(e.IBV_QP_STATE)[0].qp_state
        print(f'send {syndrome:#x} {first.status} {first.vendor_err:#x} {second.status} {int(state)}')
    for syndrome in [0x01, 0x04, 0x05, 0x11, 0x12, 0x14]:
        one, other = pair(context)
        tell(f'completion qpn={other.qp.qp_num:#x} syndrome={syndrome:#x} vendor=0xa5 side=recv')
        other.receive(1)
        other.receive(2)
        one.send(3)
        first, second = other.poll(), other.poll()
        state = other.qp.query(e.IBV_QP_STATE)[0].qp_state
        print(f'recv {syndrome:#x} {first.status} {first.vendor_err:#x} {second.status} {int(state)}')


def event_files():
    """Returns the descriptors of this process that deliver events."""
    files = set()
    for name in os.listdir('/proc/self/fd'):
        try:
            if 'infinibandevent' in os.readlink(f'/proc/self/fd/{name}'):
                files.add(int(name))
        except FileNotFoundError:
            # The descriptor of the directory itself is closed by now.
            pass
    return files


def held():
    context = Context(name=device)
    before = event_files()
    channel = CompChannel(context)
    # pyverbs does not expose the channel's descriptor.
    files = list(event_files() - before)
    assert len(files) == 1, files

    def is_there(seconds):
        return bool(select.select(files, [], [], seconds)[0])

    def say(step, answer):
        print(step, 'yes' if answer else 'no')

    one, other = pair(context, channel=channel)
    one.cq.req_notify()
    tell('events hold')
    other.receive(1)
    one.send(2)
    say('completed', one.poll().status == e.IBV_WC_SUCCESS)
    # A command completion is an event too, later than the held one; it is not held itself.
    PD(context)
    say('event-while-held', is_there(0))
    tell('events release')
    say('event-after-release', is_there(30))
    channel.get_cq_event(one.cq)
    one.cq.ack_events(1)
    one.cq.req_notify()
    other.receive(1)
    one.send(2)
    say('event-at-once', is_there(30))
    channel.get_cq_event(one.cq)
    one.cq.ack_events(1)


def queues():
    """Returns the numbers of the first function's completion queues."""
    words = [line.split() for line in tell('list') if line.startswith('cq function=0 ')]
    return {int(dict(word.split('=') for word in line[1:])['cqn'], 16) for line in words}


def say_event(context):
    event = context.get_async_event()
    print('event', event.event_type)
    # The event's object cannot be destroyed before the event is acknowledged.
    event.ack()


def overrun():
    context = Context(name=device)
    before = queues()
    cq = CQ(context, 64)
    made = queues() - before
    assert len(made) == 1, made
    tell(f'cq-overrun cqn={made.pop():#x}')
    say_event(context)


def fatal():
    context = Context(name=device)
    print('ready', flush=True)
    say_event(context)


{'commands': commands, 'completions': completions, 'held': held, 'overrun': overrun, 'fatal': fatal}[program]()
# The kernel destroys the remaining objects; Python would do so in arbitrary order.
sys.stdout.flush()
os._exit(0)
