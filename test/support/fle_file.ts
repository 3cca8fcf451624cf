import { DatabaseSync } from 'node:sqlite';

/** Makes an SQLite file with the table of FLE, as far as the server looks at it, and one program. */
export function makeFleFile(file: string): void {
  const database = new DatabaseSync(file);
  database.exec('CREATE TABLE programs (id INTEGER PRIMARY KEY AUTOINCREMENT, code TEXT NOT NULL, meta TEXT)');
  database.exec("INSERT INTO programs (code) VALUES ('pass')");
  database.close();
}
