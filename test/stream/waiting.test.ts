import { expect, it } from 'vitest';
import { WaitingSteps } from '../../src/stream/append/waiting.ts';

it('MS3: messages are let in one by one, in order, while there is room', async () => {
  const waiting = new WaitingSteps(100);
  expect(waiting.room()).toBeUndefined();
  waiting.add(150);
  const entered: number[] = [];
  const messages = [0, 1, 2].map(async (i) => {
    await waiting.room();
    entered.push(i);
    waiting.add(60);
  });
  const left = waiting.room()!;
  expect(left).toBeInstanceOf(Promise);
  waiting.add(-50);
  await new Promise((resolve) => setImmediate(resolve));
  expect(entered).toEqual([]);
  waiting.add(-1);
  await messages[0];
  await new Promise((resolve) => setImmediate(resolve));
  await new Promise((resolve) => setImmediate(resolve));
  expect(entered).toEqual([0]);
  expect(waiting.bytes).toBe(159);
  waiting.add(-99);
  await messages[1];
  waiting.add(-60);
  await messages[2];
  waiting.add(-60);
  await left;
  expect(entered).toEqual([0, 1, 2]);
  waiting.add(-60);
  expect([waiting.bytes, waiting.room()]).toEqual([0, undefined]);
});

it('MS3, MS5: principals are let in in turn', async () => {
  const waiting = new WaitingSteps(100);
  waiting.add(100);
  const entered: string[] = [];
  const messages = ['many', 'many', 'many', 'one'].map((principal) =>
    waiting.room(principal)!.then(() => entered.push(principal)),
  );
  waiting.add(-1);
  await Promise.all(messages);
  expect(entered).toEqual(['many', 'one', 'many', 'many']);
});

it('MS3: a principal with nearly all of the memory waits alone', async () => {
  const waiting = new WaitingSteps(80);
  const [many, one] = [{ waitingBytes: 0 }, { waitingBytes: 0 }];
  waiting.add(70, many);
  let isLetIn = false;
  const message = waiting.room('many', many)!.then(() => (isLetIn = true));
  await waiting.room('one', one);
  waiting.add(5, one);
  await new Promise((resolve) => setImmediate(resolve));
  expect(isLetIn).toBe(false);
  waiting.add(-5, one);
  await waiting.room('one', one);
  expect(isLetIn).toBe(false);
  waiting.add(-1, many);
  await message;
  expect([many, one, waiting.bytes]).toEqual([{ waitingBytes: 69 }, { waitingBytes: 0 }, 69]);
});
