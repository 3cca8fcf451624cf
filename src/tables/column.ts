import { Buffer } from 'node:buffer';
import { toJson } from '@bufbuild/protobuf';
import { type Timestamp, TimestampSchema } from '@bufbuild/protobuf/wkt';
import type { Action, Content, Observation, Tensor } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { listText } from '../domain/numbers/tensor.ts';

/** `json` is JSON text. `time` is a moment. */
export type ColumnType = 'text' | 'json' | 'integer' | 'number' | 'boolean' | 'time';

/** The value of a row in a column: text for `text` and `json`, a bigint for `integer`. Null if there is none. */
export type Cell = string | bigint | number | boolean | Timestamp | null;

export interface ColumnHead {
  readonly name: string;
  readonly type: ColumnType;
}

/** A column, and how its value is read from what a row is made of. */
export interface Column<Source> extends ColumnHead {
  readonly read: (source: Source) => Cell;
}

/** A file of one table that is being written. */
export interface TableFile {
  /** Writes a row: one value for each column. Waits while the disk is slower. */
  readonly write: (row: readonly Cell[]) => Promise<void>;
  /** Writes what is still in memory. The file is complete afterwards. */
  readonly finish: () => Promise<void>;
  /** Releases the file, complete or not. */
  readonly close: () => Promise<void>;
}

/** The table cannot be written. The message is for the person who asked for it. */
export class TableError extends Error {
  override readonly name = 'TableError';
}

/** `2026-01-02T03:04:05.678901Z` */
export function timeText(time: Timestamp): string {
  return toJson(TimestampSchema, time);
}

/**
 * Returns the value of the actions or observations of a step as JSON text: that of a single one without type; an object
 * by type, if their types differ, as those of the leaves of a nested value do; else a list. Null if there are none.
 */
export function itemsJson(items: readonly (Action | Observation)[]): string | null {
  const [first] = items;
  if (first === undefined) return null;
  if (items.length === 1 && first.type === '') return contentJson(first.content);
  const types = new Set(items.map(({ type }) => type));
  if (types.size < items.length || types.has('')) {
    return `[${items.map(({ content }) => contentJson(content)).join(',')}]`;
  }
  return `{${items.map(({ type, content }) => `${JSON.stringify(type)}:${contentJson(content)}`).join(',')}}`;
}

/** Returns the value of a content as JSON text. */
export function contentJson(content: Content | undefined): string {
  if (content === undefined) return 'null';
  const { text, json, data, stateDigest, uri, mediaType, size, tensor } = content;
  if (json !== undefined) return json;
  if (text !== undefined) return JSON.stringify(text);
  if (tensor !== undefined) return tensorJson(tensor);
  if (uri !== undefined) return JSON.stringify({ uri, mediaType });
  if (stateDigest !== undefined)
    return `{"stateDigest":"${stateDigest}","mediaType":${JSON.stringify(mediaType)},"size":${size}}`;
  return JSON.stringify({ data: base64(data), mediaType });
}

/** Returns nested lists of numbers, as NumPy's `tolist` does. Other tensors keep their fields. */
function tensorJson({ dtype, shape, data, stateDigest }: Tensor): string {
  const list =
    data &&
    listText({ dtype, shape }, data, ({ read }, view, at) => {
      const item = read(view, at);
      return typeof item === 'number' ? numberJson(item) : String(item);
    });
  return list ?? JSON.stringify({ tensor: { dtype, shape, ...(data ? { data: base64(data) } : { stateDigest }) } });
}

/**
 * Returns a number as JSON. NaN and infinities, which JSON does not have, become text, as in the JSON form of the API.
 */
export function numberJson(value: number): string {
  if (Object.is(value, -0)) return '-0.0';
  return Number.isFinite(value) ? String(value) : `"${value}"`;
}

function base64(data: Uint8Array | undefined): string {
  return Buffer.from(data ?? []).toString('base64');
}
