import { open } from 'node:fs/promises';
import type { Timestamp } from '@bufbuild/protobuf/wkt';
import { type Cell, type Column, type ColumnHead, numberJson, TableError, type TableFile, timeText } from './column.ts';

export const TABLE_FORMATS = ['jsonl', 'parquet', 'sqlite'] as const;
export type TableFormat = (typeof TABLE_FORMATS)[number];

/** Where a table is written. */
export interface TableTarget {
  /** Path of a file that does not exist. */
  readonly path: string;
  readonly format: TableFormat;
  /** Name of the table within a SQLite file. */
  readonly table: string;
}

/**
 * Writes a row for each source into a new file, and returns how many they are. Memory does not grow with the number of
 * rows. Errors: TableError, and those of the file system; the file is then incomplete.
 */
export async function writeTable<Source>(
  target: TableTarget,
  columns: readonly Column<Source>[],
  sources: AsyncIterable<Source>,
): Promise<number> {
  const file = await createTable(target, columns);
  try {
    let rows = 0;
    for await (const source of sources) {
      await file.write(columns.map(({ read }) => read(source)));
      rows += 1;
    }
    await file.finish();
    return rows;
  } finally {
    await file.close();
  }
}

async function createTable({ path, format, table }: TableTarget, columns: readonly ColumnHead[]): Promise<TableFile> {
  if (format === 'jsonl') return createJsonLines(path, columns);
  // Loaded on demand, because the command line starts without them.
  if (format === 'parquet') return (await import('./parquet.ts')).createParquet(path, columns);
  return (await import('./sqlite.ts')).createSqliteTable(path, table, columns);
}

/** Returns the named columns in the order of the names. Errors: TableError. */
export function selectColumns<Source>(
  columns: readonly Column<Source>[],
  names: readonly string[] | undefined,
): readonly Column<Source>[] {
  return (names ?? columns.map(({ name }) => name)).map((name, i, all) => {
    const column = columns.find((each) => each.name === name);
    if (column === undefined || all.indexOf(name) !== i) {
      const problem = column === undefined ? 'no such column' : 'named twice';
      throw new TableError(`"${name}" is ${problem}: expected some of ${columns.map((each) => each.name).join(', ')}`);
    }
    return column;
  });
}

const BUFFERED_CHARACTERS = 1024 * 1024;

/** Creates a file with a JSON object per row. Integers have all their digits, JSON is part of the object. */
async function createJsonLines(path: string, columns: readonly ColumnHead[]): Promise<TableFile> {
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
