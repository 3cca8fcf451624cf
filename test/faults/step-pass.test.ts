import { describe, expect, it } from 'vitest';
import { dose } from '../support/dose.ts';
import { passChanged, REQUESTS } from '../support/step_pass.ts';
import { reportFigures } from './figures.ts';
import { seededRandom } from './random.ts';

const COUNT = dose(50_000, 1_000_000);

describe('the pass over the bytes of steps', () => {
  it.each(Object.entries(REQUESTS))(
    'accepts only what decoding accepts, of requests of %s that are cut, swapped, repeated or flipped',
    async (name, requests) => {
      const { seed } = seededRandom();
      const accepted = passChanged(requests, COUNT, seed);
      reportFigures(`changed requests of ${name}`, { seed, requests: COUNT, accepted, 'judged otherwise': 0 });
      expect(accepted, `seed ${seed}`).toBeGreaterThan(COUNT / 50);
    },
  );
});
