import { expect, it } from 'vitest';
import { fitHelp } from '../../src/cli/help.ts';

const TEXT = `
Examples:
  anabranch tree             the newest roots
  anabranch tree --label a=b --label c=d   of two labels

Words that follow the examples
are one paragraph.
`;

it('a help text stays as it is if it fits', () => {
  expect(fitHelp(TEXT, 60)).toBe(TEXT);
});

it('what examples do is below all of them if it does not fit, and paragraphs are wrapped', () => {
  expect(fitHelp(TEXT, 46)).toBe(`
Examples:
  anabranch tree
      the newest roots
  anabranch tree --label a=b --label c=d
      of two labels

Words that follow the examples
are one paragraph.
`);
  expect(fitHelp(TEXT, 28)).toBe(`
Examples:
  anabranch tree
      the newest roots
  anabranch tree \\
    --label a=b \\
    --label c=d
      of two labels

Words that follow the
examples are one paragraph.
`);
});
