-- Every test ends with this. Each row returned is a violation; what they are and why: sql/console/invariants.sql.
select * from _invariants();
