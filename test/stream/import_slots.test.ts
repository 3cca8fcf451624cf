import { setImmediate } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { LIMITS } from '../../src/domain/limits.ts';
import { createDrain } from '../../src/stream/drain.ts';
import { ImportSlots } from '../../src/stream/import_slots.ts';

const NEVER = new AbortController().signal;

/** All slots are taken. */
async function full() {
  const drain = createDrain();
  const slots = new ImportSlots(drain, 10);
  const running = await Promise.all(Array.from({ length: LIMITS.imports }, () => slots.enter('anonymous', NEVER)));
  return { drain, slots, running };
}

it('V6: imports beyond two wait, and begin in the order in which they came', async () => {
  const { slots, running } = await full();
  const begun: number[] = [];
  const waiting = [0, 1, 2].map((i) =>
    slots.enter('anonymous', NEVER).then((leave) => {
      begun.push(i);
      return leave;
    }),
  );
  await Promise.resolve();
  expect(begun).toEqual([]);
  running[0]!();
  running[0]!();
  (await waiting[0]!)();
  await waiting[1];
  expect(begun).toEqual([0, 1]);
  running[1]!();
  await waiting[2];
  expect(begun).toEqual([0, 1, 2]);
});

it('V6, MS5: imports of several principals begin in turn', async () => {
  const { slots, running } = await full();
  const begun: string[] = [];
  const enter = async (principal: string) => {
    const leave = await slots.enter(principal, NEVER);
    begun.push(principal);
    leave();
  };
  const all = [enter('many'), enter('many'), enter('many'), enter('one')];
  running[0]!();
  await Promise.all(all);
  expect(begun).toEqual(['many', 'one', 'many', 'many']);
});

it('V6: an import whose call ends while it waits leaves its place to the next one', async () => {
  const { slots, running } = await full();
  const [first, second] = [new AbortController(), new AbortController()];
  const [given, next] = [slots.enter('anonymous', first.signal), slots.enter('anonymous', second.signal)];
  first.abort(new Error('cancelled'));
  await expect(given).rejects.toThrow('cancelled');
  running[0]!();
  (await next)();
  await expect(slots.enter('anonymous', first.signal)).rejects.toThrow('cancelled');
});

it('V6: a call that ends when its slot is handed over gives the slot back', async () => {
  const { slots, running } = await full();
  const ends = new AbortController();
  const given = slots.enter('anonymous', ends.signal).catch(() => undefined);
  running[0]!();
  ends.abort(new Error('cancelled'));
  (await given)?.();
  await slots.enter('anonymous', NEVER);
});

it('A2: an import that waits ends when the server drains', async () => {
  const { drain, slots } = await full();
  const waiting = slots.enter('anonymous', NEVER);
  drain.begin();
  await expect(waiting).rejects.toMatchObject({ reason: 'SERVER_DRAINING' });
});

it('V6: an import that sends nothing ends once another one waits, and not before', async () => {
  const { slots } = await full();
  const bytes = Promise.withResolvers<string>();
  const arriving = slots.pace()(bytes.promise, ({ length }) => length);
  const stalled = slots.pace()(new Promise<string>(() => {}), ({ length }) => length);
  bytes.resolve('bytes');
  expect(await arriving).toBe('bytes');
  const waiting = slots.enter('anonymous', NEVER);
  await expect(stalled).rejects.toMatchObject({ reason: 'MESSAGE_TIMEOUT' });
  void waiting;
});

it('V6: an import that sends a few bytes at a time ends once another one waits', async () => {
  const { slots } = await full();
  const next = slots.pace();
  const waiting = slots.enter('anonymous', NEVER);
  const drip = async () => {
    for (;;) await next(setImmediate(1), (bytes) => bytes);
  };
  await expect(drip()).rejects.toMatchObject({ reason: 'MESSAGE_TIMEOUT' });
  void waiting;
});
