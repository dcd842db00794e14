update users set city = %(city)s where id <= 3
