import { describe, expect, it } from 'vitest';
import { CliError } from '../../src/cli/context.ts';
import { parseStepReference, parseWhole } from '../../src/cli/references.ts';

const ID = '0199f3a2-7c11-7d2e-8a4b-0123456789ab';

function refusal(work: () => unknown): CliError {
  try {
    work();
  } catch (error) {
    expect(error).toBeInstanceOf(CliError);
    return error as CliError;
  }
  throw new Error('nothing was refused');
}

describe('TRAJECTORY on the command line', () => {
  it.each([
    [ID, undefined],
    [`${ID}@0`, { stepNumber: 0n }],
    [`${ID}@200`, { stepNumber: 200n }],
    [`${ID}@9223372036854775807`, { stepNumber: 2n ** 63n - 1n }],
    [`${ID}@fork`, { tag: 'fork' }],
    [`${ID}@release/1.0_a-b`, { tag: 'release/1.0_a-b' }],
  ])('B5: understands %s', (text, at) => {
    expect(parseStepReference(text)).toEqual({ trajectoryId: ID, at });
  });

  it('accepts an id in either case, as the server does', () => {
    expect(parseStepReference(ID.toUpperCase())).toEqual({ trajectoryId: ID.toUpperCase(), at: undefined });
  });

  it.each(['', 'x', '@200', ID.slice(1), `${ID}0`, `${ID} @1`, `${ID}\n`])(
    'refuses %j, which does not start with an id',
    (text) => {
      const { message, exitCode } = refusal(() => parseStepReference(text));
      expect(exitCode).toBe(2);
      expect(message).toContain(`TRAJECTORY is "${text}": expected the id of a trajectory`);
    },
  );

  it.each(['', '-1', '1.5', '9223372036854775808', '0x10', '_tag', 'a b', 'tag\n', '200@fork', `t${'x'.repeat(128)}`])(
    'refuses @%j, which is neither a step number nor a tag',
    (at) => {
      expect(refusal(() => parseStepReference(`${ID}@${at}`)).message).toContain(
        'expected a step number or a tag after @',
      );
    },
  );
});

describe('a whole number on the command line', () => {
  it('is accepted within its bounds, up to the largest step number', () => {
    expect(parseWhole('--from', '9007199254740993')).toBe(9007199254740993n);
    expect(parseWhole('--limit', '1000', 1n, 1000n)).toBe(1000n);
  });

  it.each(['', ' 1', '-1', '1e3', '1.0', 'one', '1001'])('is refused as %j, and the error names the flag', (text) => {
    expect(refusal(() => parseWhole('--limit', text, 1n, 1000n)).message).toBe(
      `--limit is "${text}": expected a whole number, 1 to 1000.`,
    );
  });
});
