import { expect, it } from 'vitest';
import { explore } from '../domain/writer_exploration.ts';
import { reportFigures } from './figures.ts';

/** The large dose of test/domain/writer_model.test.ts. */
it("W1, W2, W12, F1: through three failures, an acked step is there and its writer's, and not both writers are fenced", async () => {
  const { states, ends, violations } = explore({ steps: [1, 1], failures: 3, omit: new Set() });
  reportFigures('two writers in every order', { failures: 3, states, ends, violations: violations.size });
  expect([...violations]).toEqual([]);
  expect(states).toBeGreaterThan(500_000);
});
