import { describe, expect, it } from 'vitest';
import { parseStepReference } from '../../src/client/index.ts';

const ID = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6a';

describe('a reference to a step, in text', () => {
  it('B5: is a trajectory, with or without a step number or a tag', () => {
    expect(parseStepReference(ID)).toEqual({ trajectoryId: ID, at: undefined });
    expect(parseStepReference(`${ID}@200`)).toEqual({ trajectoryId: ID, at: { stepNumber: 200n } });
    expect(parseStepReference(`${ID}@9007199254740993`)).toEqual({
      trajectoryId: ID,
      at: { stepNumber: 9007199254740993n },
    });
    expect(parseStepReference(`${ID}@fork/a.b-c_1`)).toEqual({ trajectoryId: ID, at: { tag: 'fork/a.b-c_1' } });
  });

  it.each(['', 'x', `${ID}@`, `${ID}@-1`, `${ID}@1.5`, `${ID}@ tag`, `${ID}@9223372036854775808`, `@${ID}`])(
    'B5: "%s" is rejected, and the error says what is expected',
    (text) => {
      expect(() => parseStepReference(text)).toThrow(RangeError);
      expect(() => parseStepReference(text)).toThrow(`"${text}": expected `);
    },
  );
});
