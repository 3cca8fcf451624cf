import type { DescMethod, MessageShape } from '@bufbuild/protobuf';
import { ListOrder } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { Caller } from '../../domain/caller.ts';
import { AnabranchError } from '../../domain/errors.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { ListSort, SortValue } from '../../domain/list_order.ts';
import { pageBindingOf } from './digest.ts';

/** Fields that all list requests share. */
export interface PageArgs {
  /** 0 means the default. Values above the maximum mean the maximum. */
  readonly pageSize: number;
  /** Empty for the first page. */
  readonly pageToken: string;
  /** Digest of caller, RPC, filter and order. A token of another query is rejected. */
  readonly binding: string;
}

export interface PageOf<Item> {
  readonly items: Item[];
  /** Empty after the last page. */
  readonly nextPageToken: string;
}

export function pageArgsOf<M extends DescMethod>(
  caller: Caller,
  method: M,
  request: MessageShape<M['input']> & { readonly pageSize: number; readonly pageToken: string },
): PageArgs {
  const { pageSize, pageToken } = request;
  return { pageSize, pageToken, binding: pageBindingOf(caller, method, request) };
}

export function pageLimit(pageSize: number): number {
  return pageSize <= 0 ? LIMITS.defaultPageSize : Math.min(pageSize, LIMITS.maxPageSize);
}

export function makePageToken(binding: string, cursor: readonly string[]): string {
  return Buffer.from(JSON.stringify([binding, ...cursor])).toString('base64url');
}

/** Returns the cursor of a page token; undefined for the first page. Errors: INVALID_PAGE_TOKEN. */
export function readPageToken({ binding, pageToken }: Omit<PageArgs, 'pageSize'>): string[] | undefined {
  if (pageToken === '') return undefined;
  const [bound, ...cursor] = decode(pageToken);
  if (bound !== binding) throw invalidPageToken();
  return cursor;
}

export function invalidPageToken(): AnabranchError {
  return new AnabranchError(
    'INVALID_PAGE_TOKEN',
    'page_token: belongs to another query: pass next_page_token of the previous page with all other fields unchanged, or leave it empty for the first page.',
    { violations: [{ field: 'page_token', description: 'must be next_page_token of a page of the same query' }] },
  );
}

/** Like `readPageToken`, for the token of a stream's message. */
export function readResumeToken<Position>(
  token: string,
  binding: string,
  readPosition: (cursor: readonly string[]) => Position,
): Position | undefined {
  try {
    const cursor = readPageToken({ pageToken: token, binding });
    return cursor && readPosition(cursor);
  } catch (error) {
    if (error instanceof AnabranchError && error.reason === 'INVALID_PAGE_TOKEN') throw invalidResumeToken();
    throw error;
  }
}

function invalidResumeToken(): AnabranchError {
  return new AnabranchError(
    'INVALID_PAGE_TOKEN',
    'resume_token: belongs to another query: pass resume_token of a message with all other fields unchanged, or leave it empty to begin again.',
    { violations: [{ field: 'resume_token', description: 'must be resume_token of a message of the same query' }] },
  );
}

/** Returns an integer of a cursor with at most `bits` bits. Errors: INVALID_PAGE_TOKEN. */
export function cursorInt(cursor: readonly string[], index: number, bits = 64): bigint {
  const text = cursor[index];
  if (text === undefined || !/^-?\d{1,40}$/.test(text)) throw invalidPageToken();
  const number = BigInt(text);
  if (BigInt.asIntN(bits, number) !== number) throw invalidPageToken();
  return number;
}

function decode(token: string): string[] {
  try {
    const parsed: unknown = JSON.parse(Buffer.from(token, 'base64url').toString());
    if (Array.isArray(parsed) && parsed.every((part) => typeof part === 'string')) return parsed;
  } catch {
    // rejected below
  }
  throw invalidPageToken();
}

/** A row of a list, with what its order compares. */
interface ListKey {
  readonly key: bigint;
  readonly value: SortValue;
}

const ORDERS: Readonly<Record<ListOrder, ListSort['by']>> = {
  [ListOrder.UNSPECIFIED]: 'CREATION',
  [ListOrder.CREATE_TIME]: 'CREATION',
  [ListOrder.UPDATE_TIME]: 'UPDATE_TIME',
  [ListOrder.NAME]: 'NAME',
  [ListOrder.REWARD]: 'REWARD',
};

/** Returns the requested order. Undefined for the default, which engines read by other statements. */
export function toListSort(request: { readonly order: ListOrder; readonly ascending: boolean }): ListSort | undefined {
  const { ascending } = request;
  const by = ORDERS[request.order];
  return by === 'CREATION' && !ascending ? undefined : { by, ascending };
}

export function writeListKey({ key, value }: ListKey): string[] {
  return [`${key}`, ...(value === undefined ? [] : [`${value}`])];
}

/** Errors: INVALID_PAGE_TOKEN. */
export function readListKey(sort: ListSort | undefined, cursor: readonly string[]): ListKey {
  return { key: cursorInt(cursor, 0), value: readValue(sort?.by, cursor) };
}

/** Nanoseconds up to the year 6646, which every database can read. */
export const TIME_BITS = 68;

function readValue(by: ListSort['by'] | undefined, cursor: readonly string[]): SortValue {
  const text = cursor[1];
  if (by === 'REWARD') {
    if (text === undefined) return undefined;
    const value = text === '' ? Number.NaN : Number(text);
    if (Number.isNaN(value)) throw invalidPageToken();
    return value;
  }
  if (by === 'UPDATE_TIME') {
    const time = cursorInt(cursor, 1, TIME_BITS);
    if (time < 0n) throw invalidPageToken();
    return time;
  }
  if (by === 'NAME' && text === undefined) throw invalidPageToken();
  return by === 'NAME' ? text : undefined;
}
