import { create } from '@bufbuild/protobuf';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { WatchRequestSchema, WatchResponseSchema } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { ANONYMOUS } from '../../src/domain/caller.ts';
import type { Call } from '../../src/service/method.ts';
import { watch } from '../../src/service/server/watch.ts';
import type { App } from '../../src/stream/app.ts';
import { ChangeHub } from '../../src/stream/change_hub.ts';
import { DEFAULT_SETTINGS } from '../../src/stream/settings.ts';
import { QUIET_CHANGES } from '../support/quiet_changes.ts';
import { sharedValidator } from '../support/shared_validator.ts';

/** An app without runs, in which nothing changes. */
function quietApp(changes: ChangeHub): App {
  return {
    settings: DEFAULT_SETTINGS,
    drain: { onBegin: () => () => undefined, throwIfBegun: () => undefined },
    changes,
    store: { listRuns: async () => [] },
    waits: { watchers: 0 },
  } as unknown as App;
}

/** Watches pages of runs, and takes their snapshots. */
async function watchPages(changes: ChangeHub, count: number, signal: AbortSignal) {
  const check: Call['check'] = (schema, message) => sharedValidator().check(schema, message);
  const call = { app: quietApp(changes), caller: ANONYMOUS, signal, check } as unknown as Call;
  const subjects = Object.fromEntries(Array.from({ length: count }, (_, i) => [`${i}`, { runs: {} }]));
  const messages = watch.messages(create(WatchRequestSchema, { subjects }), call);
  const names = new Set<string>();
  for (let i = 0; i < count; i += 1) names.add((await messages.next()).value.name);
  expect(names.size).toBe(count);
  return messages;
}

describe('a watch in which nothing changes', () => {
  let changes: ChangeHub;
  beforeEach(() => {
    vi.useFakeTimers();
    changes = new ChangeHub(QUIET_CHANGES, DEFAULT_SETTINGS);
  });
  afterEach(() => {
    changes.close();
    vi.useRealTimers();
  });

  it.each([1, 64])('M5: of %i subjects sends one sign of life well before 15 s', async (count) => {
    const leaving = new AbortController();
    const messages = await watchPages(changes, count, leaving.signal);
    const times = [Date.now()];
    const watching = async () => {
      for await (const response of messages) {
        expect(response).toEqual(create(WatchResponseSchema));
        times.push(Date.now());
      }
    };
    const done = watching();
    await vi.advanceTimersByTimeAsync(60_000);
    leaving.abort();
    await done;
    expect(times).toHaveLength(5);
    for (const silent of times.slice(1).map((time, i) => time - times[i]!)) {
      expect(silent).toBeGreaterThan(10_000);
      expect(silent).toBeLessThan(15_000);
    }
    expect(changes.listeners).toBe(0);
  });

  it('M5: sends one sign of life to a reader that pauses, not one for each subject', async () => {
    const leaving = new AbortController();
    const messages = await watchPages(changes, 64, leaving.signal);
    await vi.advanceTimersByTimeAsync(60_000);
    expect((await messages.next()).value).toEqual(create(WatchResponseSchema));
    let more = 0;
    const next = messages.next().then(() => {
      more += 1;
    });
    await vi.advanceTimersByTimeAsync(10_000);
    expect(more).toBe(0);
    leaving.abort();
    await next;
  });
});
