import { version } from 'uuid';
import { describe, expect, it } from 'vitest';
import { AnabranchError } from '../../src/domain/errors.ts';
import { derivedUuid, parseDigest, parseTagName, parseUuid, shorten } from '../../src/domain/ids.ts';

function refusal(call: () => unknown): AnabranchError {
  try {
    call();
  } catch (error) {
    expect(error).toBeInstanceOf(AnabranchError);
    return error as AnabranchError;
  }
  throw new Error('nothing was refused');
}

const UUID = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6a';
const DIGEST = 'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855';

describe('ids', () => {
  it('FM1: UUIDs that differ only in case are one id', () => {
    expect(parseUuid(UUID.toUpperCase(), 'id')).toBe(UUID);
    expect(parseUuid(UUID, 'id')).toBe(UUID);
  });

  it.each([
    '',
    ' ',
    'x',
    UUID.slice(1),
    `${UUID}0`,
    `{${UUID}}`,
    UUID.replaceAll('-', ''),
    ` ${UUID}`,
    `${UUID}\n`,
    UUID.replace('a', 'g'),
  ])('FM1: "%s" is no UUID; the error names the field and the expected form', (text) => {
    const error = refusal(() => parseUuid(text, 'trajectory_id'));
    expect(error).toMatchObject({ reason: 'INVALID_REQUEST', violations: [{ field: 'trajectory_id' }] });
    expect(error.message).toContain('trajectory_id');
    expect(error.message).toContain('UUID');
  });

  it('B7: an id is derived from a text by its SHA-256, always in the same way', () => {
    const id = derivedUuid('a text');
    expect(id).toBe('734194ed-e5b0-83e6-84d6-3cb95a682ca1');
    expect(version(id)).toBe(8);
  });

  it('FM1: a digest consists of 64 lower-case hex characters', () => {
    expect(parseDigest(DIGEST, 'digest')).toBe(DIGEST);
    for (const wrong of ['', DIGEST.toUpperCase(), DIGEST.slice(1), `${DIGEST}0`, `${DIGEST}\n`, `sha256:${DIGEST}`]) {
      const error = refusal(() => parseDigest(wrong, 'states[0].digest'));
      expect(error).toMatchObject({ reason: 'INVALID_REQUEST', violations: [{ field: 'states[0].digest' }] });
    }
  });

  it('B5: a tag starts with a letter and contains only letters, digits and . _ - /', () => {
    for (const right of ['a', 'Z9', 'best/run-1.0_x', 'a'.repeat(128)]) expect(parseTagName(right, 'name')).toBe(right);
    for (const wrong of ['', '9', '200', '-1', '_a', '.a', '/a', 'a b', 'é', 'aé', 'a@b', 'a'.repeat(129), 'a\n'])
      expect(refusal(() => parseTagName(wrong, 'name')).reason).toBe('INVALID_REQUEST');
  });

  it('B5: tags that differ only in case are two tags', () => {
    expect(parseTagName('Best', 'name')).not.toBe(parseTagName('best', 'name'));
  });
});

describe('text of a client, quoted in a message', () => {
  it('is short and plain: without control characters and direction marks, at most 80 characters', () => {
    expect(shorten('a\n\u001b[31m\u202eb\u200b')).toBe('a??[31m?b?');
    expect(shorten('x'.repeat(1000))).toHaveLength(80);
    expect(shorten('x'.repeat(80))).toBe('x'.repeat(80));
    expect(refusal(() => parseUuid('y'.repeat(100_000), 'id')).message.length).toBeLessThan(250);
  });

  it('is never truncated inside a character', () => {
    for (const lead of ['', 'a']) expect(shorten(`${lead}${'🌊'.repeat(100)}`).isWellFormed()).toBe(true);
  });
});
