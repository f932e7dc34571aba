"""The compiled loops of the clients: no Python runs per record, no interpreter lock is held.

They call librdkafka's functions by address, and read `rd_kafka_message_t` as an array of eight-byte
words (see MESSAGE_*), which is its layout on every 64-bit Linux: err i32, rkt *, partition i32,
payload *, len, key *, key_len, offset i64, private *.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from bench.clients.librdkafka import (
    clock_gettime,
    rd_consume,
    rd_consume_callback,
    rd_flush,
    rd_message_destroy,
    rd_outstanding,
    rd_poll,
    rd_produce_batch,
    usleep,
)

# rd_kafka_message_t in words.
MESSAGE_WORDS = 9
MESSAGE_ERROR, MESSAGE_PARTITION, MESSAGE_PAYLOAD, MESSAGE_LENGTH, MESSAGE_OFFSET = 0, 2, 3, 4, 7
# What a consumer took, in words: how many records of how many, their bytes, what was wrong, and the
# offset that is due next in each partition.
TAKEN_COUNT, TAKEN_COUNT_MAX, TAKEN_BYTES, TAKEN_IS_CONTIGUOUS = 0, 1, 2, 3
TAKEN_ERROR, TAKEN_OFFSET, TAKEN_EXPECTED, TAKEN_NEXT_OFFSETS = 4, 5, 6, 7
# In the place of an error code of librdkafka's, which are negative or Kafka's.
ERROR_OF_OFFSET = 1 << 20
_WAIT_MS = 200
_LOW_32_BITS = 0xFFFFFFFF
_FLAG_COPY = 2
# librdkafka itself gives a record up after five minutes.
_FLUSH_TIMEOUT_MS = 300_000
_CLOCK_MONOTONIC = 1


@intrinsic
def words_at(typing_context, address):
    """The address as a pointer to words that compiled code can index."""
    signature = types.CPointer(types.int64)(types.uintp)

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return signature, generate


@numba.njit(nogil=True)
def now_ns(clock):
    clock_gettime(_CLOCK_MONOTONIC, clock.ctypes.data)
    return clock[0] * 1_000_000_000 + clock[1]


@numba.cfunc("void(uintp, uintp, uintp)")
def count_failure(handle, message, counters):
    """Of the delivery reports only failures arrive: delivery.report.only.error is set."""
    words = words_at(counters)
    words[0] += 1
    words[1] = words_at(message)[MESSAGE_ERROR] & _LOW_32_BITS


@numba.njit(nogil=True)
def produce_loop(
    handles, topics, partition_count, messages, pool, pool_stride, per_call, count, outstanding_max
):
    """Hands `count` records round the connections and, a call's worth at a time, the partitions."""
    pool_count = pool.size // pool_stride
    payload_address = pool.ctypes.data
    sent = at = call = 0
    while sent < count:
        connection = call % handles.size
        handle = handles[connection]
        # Its queue is full: others first, and this one's events are served when it is its turn.
        if rd_outstanding(handle) + per_call > outstanding_max:
            rd_poll(handle, 1 if handles.size == 1 else 0)
            if handles.size > 1:
                full = 0
                for other in handles:
                    if rd_outstanding(other) + per_call > outstanding_max:
                        full += 1
                if full == handles.size:
                    usleep(200)
                call += 1
            continue
        number = min(per_call, count - sent)
        for i in range(number):
            messages[i, MESSAGE_ERROR] = 0
            messages[i, MESSAGE_PAYLOAD] = payload_address + at * pool_stride
            messages[i, MESSAGE_LENGTH] = pool_stride
            at = at + 1 if at + 1 < pool_count else 0
        done = rd_produce_batch(
            topics[connection],
            (call // handles.size) % partition_count
            if partition_count >= handles.size
            else call % partition_count,
            0,
            messages.ctypes.data,
            number,
        )
        if done != number:
            return sent + done
        sent += number
        call += 1
    for handle in handles:
        while rd_outstanding(handle) > 0:
            if rd_flush(handle, _FLUSH_TIMEOUT_MS) != 0:
                return -1
    return sent


@numba.cfunc("void(uintp, uintp)")
def take_message(message_address, state_address):
    """Checks and counts one record; see TAKEN_* for the state. Compiled code calls it."""
    state, message = words_at(state_address), words_at(message_address)
    if state[TAKEN_ERROR] != 0 or state[TAKEN_COUNT] >= state[TAKEN_COUNT_MAX]:
        return
    error = np.int32(message[MESSAGE_ERROR] & _LOW_32_BITS)
    if error != 0:
        state[TAKEN_ERROR] = error
        return
    partition = TAKEN_NEXT_OFFSETS + (message[MESSAGE_PARTITION] & _LOW_32_BITS)
    offset, expected = message[MESSAGE_OFFSET], state[partition]
    if offset < expected or (state[TAKEN_IS_CONTIGUOUS] != 0 and offset != expected):
        state[TAKEN_ERROR] = ERROR_OF_OFFSET
        state[TAKEN_OFFSET], state[TAKEN_EXPECTED] = offset, expected
        return
    state[partition] = offset + 1
    state[TAKEN_COUNT] += 1
    state[TAKEN_BYTES] += message[MESSAGE_LENGTH]


@numba.njit(nogil=True)
def consume_loop(queue, take, state, idle_ms_max):
    """Takes records off a queue until the state has its count, or an error.

    All that lie ready are taken with one look at the queue's lock. `consume_batch_queue` takes it
    for each of them, and frees each at once: then the client's two threads wait for each other the
    more, the less the broker leaves them to wait for.
    """
    idle_ms = 0
    while state[TAKEN_COUNT] < state[TAKEN_COUNT_MAX] and state[TAKEN_ERROR] == 0:
        if rd_consume_callback(queue, _WAIT_MS, take, state.ctypes.data) > 0:
            idle_ms = 0
            continue
        idle_ms += _WAIT_MS
        if idle_ms > idle_ms_max:
            break


@numba.njit(nogil=True)
def paced_loop(handle, topic, partition_count, message, payload, count, interval_ns, clock):
    """Sends a record each interval. Its first word is the time at which it was due, so that a
    producer that falls behind shows as latency and is not left out of it.
    """
    due_ns = now_ns(clock)
    for number in range(count):
        wait_ns = due_ns - now_ns(clock)
        # A sleep is 50 us late at the least; a shorter wait is made by sending at once.
        while wait_ns > 60_000:
            usleep(np.uint32(min(wait_ns // 1000 - 50, 100_000)))
            wait_ns = due_ns - now_ns(clock)
        payload[0] = due_ns
        message[0, MESSAGE_ERROR] = 0
        while (
            rd_produce_batch(topic, number % partition_count, _FLAG_COPY, message.ctypes.data, 1)
            != 1
        ):
            rd_poll(handle, 1)
            message[0, MESSAGE_ERROR] = 0
        due_ns += interval_ns
    return rd_flush(handle, _FLUSH_TIMEOUT_MS)


@numba.njit(nogil=True)
def latency_loop(queue, latencies_ns, idle_ms_max, clock):
    """The age of each record as it arrives; how many came, or the error as a negative number.

    One at a time: `consume_batch_queue` would wait until its array is full.
    """
    got = 0
    while got < latencies_ns.size:
        pointer = rd_consume(queue, idle_ms_max)
        if pointer == 0:
            break
        message = words_at(pointer)
        error = np.int32(message[MESSAGE_ERROR] & _LOW_32_BITS)
        if error != 0:
            return min(error, -error)
        latencies_ns[got] = now_ns(clock) - words_at(message[MESSAGE_PAYLOAD])[0]
        got += 1
        rd_message_destroy(pointer)
    return got
