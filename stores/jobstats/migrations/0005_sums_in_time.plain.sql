-- Partitions of the sums, with the bounds of those that the observations have already.
DO $$$$
DECLARE
    part record;
BEGIN
    FOR part IN
        SELECT p.relname AS parent, c.relname AS name, pg_get_expr(c.relpartbound, c.oid) AS bounds
        FROM pg_inherits i
        JOIN pg_class c ON c.oid = i.inhrelid
        JOIN pg_class p ON p.oid = i.inhparent
        WHERE i.inhparent IN (to_regclass('ost'), to_regclass('mdt'))
    LOOP
        EXECUTE format(
            'CREATE TABLE %I PARTITION OF %I %s',
            part.parent || '_sums' || substr(part.name, 4), part.parent || '_sums', part.bounds
        );
    END LOOP;
END
$$$$;
