import { Code } from '@connectrpc/connect';
import { pino } from 'pino';
import { expect, it } from 'vitest';
import { RetryInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import { reasonOf } from '../../src/client/index.ts';
import { HEAP_BYTES, HeapFullError, requireHeap } from '../../src/listen/heap.ts';
import { toConnectError } from '../../src/rpc/errors.ts';

it('A11, MS4: a full heap refuses messages of more than 4 KiB, and a heap with room refuses none', () => {
  for (const bytes of [0, 4096]) expect(() => requireHeap(bytes, 2 * HEAP_BYTES)).not.toThrow();
  for (const bytes of [4097, 2 ** 20]) {
    expect(() => requireHeap(bytes, HEAP_BYTES)).toThrow(HeapFullError);
    expect(() => requireHeap(bytes, HEAP_BYTES / 2)).not.toThrow();
  }
});

it('A11, MS4: such a message is refused with RESOURCE_EXHAUSTED and RetryInfo', () => {
  const error = toConnectError(new HeapFullError(), 'read', pino({ level: 'silent' }));
  expect([error.code, reasonOf(error)]).toEqual([Code.ResourceExhausted, 'MEMORY_FULL']);
  expect(error.findDetails(RetryInfoSchema)).toHaveLength(1);
});
