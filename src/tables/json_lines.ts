import { open } from 'node:fs/promises';
import { toJson } from '@bufbuild/protobuf';
import { type Timestamp, TimestampSchema } from '@bufbuild/protobuf/wkt';
import type { Cell, ColumnHead, TableFile } from './column.ts';
import { numberJson } from './value_json.ts';

const BUFFERED_CHARACTERS = 1024 * 1024;

/** Creates a file with a JSON object per row. Integers have all their digits, JSON is part of the object. */
export async function createJsonLines(path: string, columns: readonly ColumnHead[]): Promise<TableFile> {
  const file = await open(path, 'wx');
  const heads = columns.map(({ name, type }) => ({ key: JSON.stringify(name), type }));
  let text = '';
  const flush = async () => {
    const written = text;
    text = '';
    await file.appendFile(written);
  };
  return {
    async write(row) {
      text += `{${heads.map(({ key, type }, i) => `${key}:${cellJson(row[i] ?? null, type)}`).join(',')}}\n`;
      if (text.length > BUFFERED_CHARACTERS) await flush();
    },
    finish: flush,
    close: () => file.close(),
  };
}

function cellJson(cell: Cell, type: ColumnHead['type']): string {
  if (cell === null) return 'null';
  // Valid JSON has line breaks only between its parts.
  if (type === 'json') return String(cell).replaceAll(/[\r\n]/g, ' ');
  if (type === 'integer') return String(cell);
  if (type === 'number') return numberJson(cell as number);
  return JSON.stringify(type === 'time' ? timeText(cell as Timestamp) : cell);
}

/** `2026-01-02T03:04:05.678901Z` */
export function timeText(time: Timestamp): string {
  return toJson(TimestampSchema, time);
}
