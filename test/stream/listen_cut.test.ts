import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ON_POSTGRES } from '../support/database.ts';
import { type Deafened, following, openDeafened } from './deafened.ts';

const NEVER = 3_600_000;

describe.runIf(ON_POSTGRES)(
  'R2: an instance that hears nothing of others, because its LISTEN is cut, on postgres',
  () => {
    let scene: Deafened;
    beforeAll(async () => {
      scene = await openDeafened();
    });
    afterAll(() => scene?.[Symbol.asyncDispose]());

    const onDeaf = (pollMs: number) => scene.appOn(scene.deaf, { pollMs });
    const onOther = () => scene.appOn(scene.other, { pollMs: NEVER });

    it('loses nothing without polls: after the return of LISTEN, each follower gets each step once', async () => {
      const { write, have, words, ended } = await following(onDeaf(NEVER), onOther());
      await write(1n, 'b');
      await have('ab');
      await scene.cut();
      await write(2n, 'c');
      await write(3n, 'd');
      expect(words.every((each) => each.join('') === 'ab')).toBe(true);
      await scene.mend();
      await have('abcd');
      await write(4n, 'e', true);
      await ended;
      await have('abcde');
    });

    it('polls for all followers meanwhile, and its own writes still wake followers elsewhere', async () => {
      const here = await following(onDeaf(20), onOther());
      const there = await following(onOther(), onDeaf(20));
      await here.have('a');
      await scene.cut();
      for (const { write, have } of [here, there]) {
        await write(1n, 'b');
        await have('ab');
        await write(2n, 'c', true);
      }
      await Promise.all([here.ended, there.ended]);
      for (const { have } of [here, there]) await have('abc');
      await scene.mend();
    });
  },
);
