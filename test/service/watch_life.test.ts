import { create } from '@bufbuild/protobuf';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { WatchRequestSchema, WatchResponseSchema } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { ANONYMOUS } from '../../src/domain/caller.ts';
import type { Call } from '../../src/service/method.ts';
import { watch } from '../../src/service/server/watch.ts';
import type { App } from '../../src/stream/app.ts';
import { DEFAULT_SETTINGS } from '../../src/stream/settings.ts';
import { sharedValidator } from '../support/shared_validator.ts';

/** An app without runs, in which nothing changes. */
const QUIET = {
  settings: DEFAULT_SETTINGS,
  drain: { onBegin: () => () => undefined, throwIfBegun: () => undefined },
  changes: { subscribeAll: () => () => undefined },
  store: { listRuns: async () => [] },
} as unknown as App;

describe('a watch of several subjects', () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  it.each([1, 64])('M5: of %i in which nothing changes sends one sign of life well before 15 s', async (count) => {
    const leaving = new AbortController();
    const { signal } = leaving;
    const check: Call['check'] = (schema, message) => sharedValidator().check(schema, message);
    const call = { app: QUIET, caller: ANONYMOUS, signal, check } as unknown as Call;
    const subjects = Object.fromEntries(Array.from({ length: count }, (_, i) => [`${i}`, { runs: {} }]));
    const times: number[] = [];
    let snapshots = 0;
    const watching = async () => {
      for await (const response of watch.messages(create(WatchRequestSchema, { subjects }), call)) {
        if ('name' in response && response.name !== '') snapshots += 1;
        else {
          expect(response).toEqual(create(WatchResponseSchema));
          times.push(Date.now());
        }
      }
    };
    const began = Date.now();
    const done = watching();
    await vi.advanceTimersByTimeAsync(60_000);
    leaving.abort();
    await done;
    expect(snapshots).toBe(count);
    expect(times).toHaveLength(4);
    for (const [i, time] of times.entries()) {
      const silent = time - (times[i - 1] ?? began);
      expect(silent).toBeGreaterThan(10_000);
      expect(silent).toBeLessThan(15_000);
    }
    expect(vi.getTimerCount()).toBe(0);
  });
});
