import { setTimeout as delay } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { DEFAULT_SETTINGS } from '../../src/stream/settings.ts';
import { expectVerified } from '../store/verified.ts';
import { following, openDeafened } from '../stream/deafened.ts';
import { dose } from '../support/dose.ts';
import { reportFigures } from './figures.ts';
import { MACHINE_MS } from './postgres/outage.ts';

const SECONDS = dose(4, 60);
/** While an instance hears nothing of others, it polls this often. */
const PROMISED_MS = 1_000;
const BETWEEN_MS = 100;

it('R2: an instance without LISTEN has each step of others within a second, and none is lost or repeated', async () => {
  await using scene = await openDeafened();
  const pollMs = DEFAULT_SETTINGS.pollMs;
  const { write, words, times, ended } = await following(
    scene.appOn(scene.deaf, { pollMs }),
    scene.appOn(scene.other, { pollMs }),
  );
  await expect.poll(() => words.every((each) => each.length === 1), { timeout: 10_000 }).toBe(true);
  await scene.cut();
  const acked: number[] = [];
  for (const end = performance.now() + SECONDS * 1000; performance.now() < end; await delay(BETWEEN_MS)) {
    await write(BigInt(acked.length + 1), `${acked.length + 1} `);
    acked.push(performance.now());
  }
  await scene.mend();
  await write(BigInt(acked.length + 1), 'z', true);
  await ended;
  const expected = ['a', ...acked.map((_, i) => `${i + 1} `), 'z'].join('');
  for (const each of words) expect(each.join('')).toBe(expected);
  const waits = times.flatMap((each) => acked.map((time, i) => each[i + 1]! - time));
  const slowest = Math.max(...waits);
  reportFigures('LISTEN cut', {
    seconds: SECONDS,
    followers: words.length,
    'steps followed': waits.length,
    lost: 0,
    'slowest step, ms': Math.round(slowest),
  });
  await expectVerified(scene.deaf);
  expect(slowest).toBeLessThanOrEqual(PROMISED_MS + MACHINE_MS);
});
