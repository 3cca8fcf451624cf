import { type AnabranchError, invalidField } from './errors.ts';
import { findInvalidValue } from './json_fault.ts';

/** W11: returns whether both engines can store the text: no U+0000, and no lone surrogate. */
export function isStorableText(text: string): boolean {
  return !text.includes('\0') && text.isWellFormed();
}

export function requireText(text: string, field: string): string {
  if (!isStorableText(text)) throw unstorableText(field);
  return text;
}

/**
 * Returns whether text can be a media type: printable ASCII, so that it can be sent in any header. The protos have the
 * same rule.
 */
export function isMediaType(text: string): boolean {
  return PRINTABLE.test(text);
}

const PRINTABLE = /^[ -~]*$/;

/** What is wrong with text that cannot be stored. */
export const UNSTORABLE_TEXT =
  'must be text without U+0000 and without lone surrogates: send such content as bytes (data)';

export function unstorableText(field: string): AnabranchError {
  return invalidField(field, UNSTORABLE_TEXT);
}

/** Returns what is wrong with a JSON text; undefined if nothing. */
export function jsonFault(text: string): string | undefined {
  if (!isStorableText(text)) return 'must be JSON text without U+0000 and without lone surrogates';
  try {
    JSON.parse(text);
    return undefined;
  } catch (error) {
    return `must be strict JSON text: ${invalidValue(text) ?? parserMessage(error)}`;
  }
}

const NON_FINITE = /^(?:NaN|-?Infinity)$/u;

function invalidValue(text: string): string | undefined {
  const found = findInvalidValue(text);
  if (found === undefined) return undefined;
  const { path, value } = { path: printable(found.path), value: printable(found.value) };
  const subject = path === '' ? 'the value' : `the value at ${path}`;
  return NON_FINITE.test(value)
    ? `${subject} is ${value}, which JSON does not allow. Send null or the string "${value}" instead`
    : `${subject} is ${value}, which is not JSON`;
}

function parserMessage(error: unknown): string {
  return printable(error instanceof SyntaxError ? error.message : 'it cannot be read');
}

/** Shortens text of a client and replaces invisible characters, so that a message can contain it. */
function printable(text: string): string {
  const visible = text.replace(/[\p{Cc}\p{Cf}]/gu, '?');
  return visible.length <= 160 ? visible : `${beginning(visible, 159)}…`;
}

/** Returns at most `units` UTF-16 units from the beginning of the text, without half a character at the end. */
export function beginning(text: string, units: number): string {
  return text.slice(0, units).replace(/[\ud800-\udbff]$/, '');
}

/** Returns whether the text has at most `bytes` bytes as UTF-8. Encodes the text only if its length does not decide. */
export function fitsBytes(text: string, bytes: number): boolean {
  return text.length * 3 <= bytes || Buffer.byteLength(text) <= bytes;
}
