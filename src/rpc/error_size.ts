import type { AnabranchError, Violation } from '../domain/errors.ts';
import { LIMITS } from '../domain/limits.ts';
import { fitsBytes } from '../domain/text.ts';

/**
 * Errors travel in response headers, and gRPC clients reject headers of more than 8 KiB: the caller would see
 * RESOURCE_EXHAUSTED in place of the error. A message is sent twice, percent-encoded in grpc-message and as part of
 * grpc-status-details-bin; details only in the latter, as base64.
 */

/** The content of an error. */
interface ErrorContent {
  readonly message: string;
  readonly metadata: Readonly<Record<string, string>>;
  readonly violations: readonly Violation[];
}

/** Bytes of the header names, code, reason, domain, RetryInfo, and the number of omitted violations. */
const FIXED_BYTES = 700;
/** Bytes of a message in grpc-message, without the sentence about omitted violations. */
const MESSAGE_BYTES = 1280;
/** Bytes of all metadata: enough for 20 ids. */
const METADATA_BYTES = 1000;
const FIELD_BYTES = 240;
const DESCRIPTION_BYTES = 480;
/** Tags and lengths of one entry of a map or a list. */
const ENTRY_BYTES = 10;
const CUT = '...';

/**
 * Shortens the content of an error so that all its headers have at most `LIMITS.errorBytes`. Cut text ends with "...".
 */
export function fitError(error: AnabranchError): ErrorContent {
  const message = fitText(error.message, MESSAGE_BYTES, percentBytes);
  const metadata = fitMetadata(error.metadata);
  const room = LIMITS.errorBytes - FIXED_BYTES - percentBytes(message) - base64Bytes(Buffer.byteLength(message));
  const violations = fitViolations(error.violations, room - base64Bytes(metadataBytes(metadata)));
  const leftOut = error.violations.length - violations.length + error.unlistedViolations;
  if (leftOut === 0) return { message, metadata, violations };
  return {
    message: `${message} (${leftOut} more ${leftOut === 1 ? 'violation is' : 'violations are'} not listed)`,
    metadata: { ...metadata, violations_left_out: `${leftOut}` },
    violations,
  };
}

/** Shortens the text of an error that has no details. */
export function fitMessage(message: string): string {
  return fitText(message, MESSAGE_BYTES, percentBytes);
}

/** An error in a response that has up to 1,000 of them, which must have less than 1 MiB. */
interface PartErrorText {
  readonly message: string;
  readonly metadata: Readonly<Record<string, string>>;
  readonly field: string;
}

const PART_MESSAGE_BYTES = 480;
const PART_METADATA_BYTES = 320;
const PART_FIELD_BYTES = 120;

/** Shortens the content of an error that is a part of a response. */
export function fitPart({ message, metadata, field }: PartErrorText): PartErrorText {
  return {
    message: fitText(message, PART_MESSAGE_BYTES, Buffer.byteLength),
    metadata: fitMetadata(metadata, PART_METADATA_BYTES),
    field: fitText(field, PART_FIELD_BYTES, Buffer.byteLength),
  };
}

function fitMetadata(
  metadata: Readonly<Record<string, string>>,
  bytes = METADATA_BYTES,
): Readonly<Record<string, string>> {
  if (metadataBytes(metadata) <= bytes) return metadata;
  const fitted: Record<string, string> = {};
  let room = bytes;
  // Small values first: they are ids and numbers, which are useless if they are cut.
  for (const [key, value] of Object.entries(metadata).sort(([, a], [, b]) => a.length - b.length)) {
    const text = fitText(value, Math.max(0, room - entryBytes(key, '')), Buffer.byteLength);
    room -= entryBytes(key, text);
    if (room >= 0) fitted[key] = text;
  }
  return fitted;
}

/** Returns as many of the first violations as fit, each shortened. */
function fitViolations(violations: readonly Violation[], roomInBase64: number): Violation[] {
  const fitted: Violation[] = [];
  let room = Math.floor((roomInBase64 / 4) * 3);
  for (const violation of violations) {
    const field = fitText(violation.field, FIELD_BYTES, Buffer.byteLength);
    const description = fitText(violation.description, DESCRIPTION_BYTES, Buffer.byteLength);
    room -= entryBytes(field, description);
    if (room < 0) break;
    fitted.push({ field, description });
  }
  return fitted;
}

/** Returns the text if it fits, else its longest prefix of whole characters that fits together with "...". */
function fitText(text: string, bytes: number, bytesOf: (text: string) => number): string {
  if (fitsBytes(text, bytes / 3) || bytesOf(text.toWellFormed()) <= bytes) return text.toWellFormed();
  let room = bytes - CUT.length;
  let end = 0;
  for (const character of text) {
    room -= bytesOf(character.toWellFormed());
    if (room < 0) break;
    end += character.length;
  }
  return `${text.slice(0, end).toWellFormed()}${CUT}`;
}

function metadataBytes(metadata: Readonly<Record<string, string>>): number {
  return Object.entries(metadata).reduce((sum, [key, value]) => sum + entryBytes(key, value), 0);
}

function entryBytes(key: string, value: string): number {
  return ENTRY_BYTES + Buffer.byteLength(key) + Buffer.byteLength(value);
}

function percentBytes(text: string): number {
  return encodeURIComponent(text).length;
}

function base64Bytes(bytes: number): number {
  return Math.ceil(bytes / 3) * 4;
}
