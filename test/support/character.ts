import fc from 'fast-check';

const SURROGATES = { first: 0xd800, count: 0x800 };

/**
 * A Unicode character as the `unit` of `fc.string`: any, except lone surrogates. The `binary` unit of fast-check has
 * the same characters, but makes a map of all of them, which takes more than a second and 90 MB in each process.
 */
export const CHARACTER: fc.Arbitrary<string> = fc
  .nat({ max: 0x10ffff - SURROGATES.count })
  .map(characterOf, (character) => indexOf(character as string));

function characterOf(index: number): string {
  return String.fromCodePoint(index < SURROGATES.first ? index : index + SURROGATES.count);
}

function indexOf(character: string): number {
  const codePoint = character.codePointAt(0) ?? 0;
  const index = codePoint < SURROGATES.first ? codePoint : codePoint - SURROGATES.count;
  if (characterOf(index) !== character) throw new RangeError(`not a single character: ${character}`);
  return index;
}
